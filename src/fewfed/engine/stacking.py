"""Clients side by side in one worker process.

Tiny networks spend most of a step in calls, not in arithmetic; stacked, one call serves many clients. Larger ones lose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from fewfed.engine.client import run_member
from fewfed.engine.device.executor import Device
from fewfed.engine.device.options import DeviceOptions
from fewfed.engine.job import Block, Job, Member, Outcome
from fewfed.errors import in_one_line
from fewfed.phase import Clock, Phase
from fewfed.tree import Tree


def bundles(members: Iterator[Member], processes: int, size: int) -> Iterator[list[Member]]:
    """Members in bundles of at most `size`, smaller ones rather than idle processes. Only a part is held at a time."""
    while part := list(islice(members, processes * size)):
        each = -(-len(part) // processes)
        for first in range(0, len(part), each):
            yield part[first : first + each]


class Stacks:
    """Runs bundles. What cannot be stacked is run one by one, and the reason said."""

    def __init__(self, job: Job) -> None:
        self._job = job
        # One for each size: a stack that is not full must be masked, which makes a tiny network's step twice as long.
        self._devices: dict[int, Device] = {}

    def run(
        self, phase: Phase, clock: Clock, shared: Tree, members: Sequence[Member], channels_last: bool = False
    ) -> tuple[list[Outcome], list[str]]:
        """An outcome for every member, in order, and what a reader of the run should know.

        `channels_last`: how kernels lie for members that are run one by one after all.
        """
        device = self._device(len(members))
        found: dict[int, Outcome] = {}
        try:
            for outcome in device.run(phase, clock, shared, members):
                for one in outcome.done if isinstance(outcome, Block) else (outcome,):
                    found[one.client] = one
        except Exception as error:  # Whatever it is, a client alone shows whether it is to blame.
            event = _cannot(f"phase '{phase.name}'", f"{type(error).__name__}: {in_one_line(error)}")
            alone = [run_member(self._job, phase, clock, shared, member, channels_last) for member in members]
            return alone, [event]
        return [found[member.client] for member in members], [_of_the_cpu(event) for event in device.events()]

    def _device(self, size: int) -> Device:
        if size not in self._devices:
            self._devices[size] = Device(self._job, DeviceOptions(device="cpu", plan="stacked", width=size))
        return self._devices[size]


def _of_the_cpu(event: str) -> str:
    """What a `Device` says of itself, where it is no device but a worker process."""
    phase, found, reason = event.partition(" runs step by step on the device: ")
    return _cannot(phase, reason) if found else event


def _cannot(phase: str, reason: str) -> str:
    return f"{phase} runs clients that cannot be stacked one by one: {reason}"
