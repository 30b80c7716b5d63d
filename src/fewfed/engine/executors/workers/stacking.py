"""Stacks of clients in one worker process.

A step of a tiny network is mostly the cost of calls, not of arithmetic. In a stack, one call serves many clients.
Larger networks get slower.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice

from fewfed import tree
from fewfed.engine.events import Event, Impossible
from fewfed.engine.executors.cuda.executor import RECORDED, Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.job import Job
from fewfed.engine.lending import Glance, Lender
from fewfed.engine.outcomes import Failed, Finished
from fewfed.engine.packet import BadPacket, refuse_odd_tree
from fewfed.engine.turn import Member
from fewfed.errors import in_one_line
from fewfed.phase import Clock, Phase


def bundles(members: Iterator[Member], processes: int, size: int) -> Iterator[list[Member]]:
    """Members in bundles of at most `size`; bundles are made smaller where processes would otherwise be idle."""
    while part := list(islice(members, processes * size)):
        each = -(-len(part) // processes)
        for first in range(0, len(part), each):
            yield part[first : first + each]


class Stacks:
    """Runs bundles as stacks. What cannot be stacked is run one by one, and an event gives the reason."""

    def __init__(self, job: Job) -> None:
        self._job = job
        # One for each size: a stack that is not full needs masks, which double the time of a tiny network's step.
        self._devices: dict[int, Device] = {}

    def run(
        self, phase: Phase, clock: Clock, lender: Lender, members: Sequence[Member], channels_last: bool = False
    ) -> tuple[list[Finished | Failed], list[Event]]:
        """The result of every member, in order, and events.

        `channels_last`: the memory order for members that are run one by one after all.
        """
        device = self._device(len(members))
        lent = [
            dataclasses.replace(one, personal=tree.detach(one.personal), state=tree.detach(one.state))
            for one in members
        ]
        own = Glance(*(part for one in lent for part in (one.personal, one.state)))
        try:
            found = dict(device.turns(phase, clock, lender.shared, lent))
            why = "" if lender.unchanged(phase, own.unchanged) else "its functions change what they are given"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # Also `sys.exit()`.
            why = f"{type(error).__name__}: {in_one_line(error)}"
        if why:  # Run one by one, a client that is the cause fails alone.
            lender.unchanged(phase, own.unchanged)
            singles = [lender.turn(phase, clock, member, channels_last) for member in members]
            return singles, [Impossible("stacks", why, phase.name)]
        return [_sound(found[member.client]) for member in members], [_of_stacks(event) for event in device.events()]

    def _device(self, size: int) -> Device:
        if size not in self._devices:
            self._devices[size] = Device(self._job, options=Options(device="cpu", mode="stacked", stack=size))
        return self._devices[size]


def _sound(found: Finished | Failed) -> Finished | Failed:
    """The same, unless its arrays cannot go to another process."""
    if isinstance(found, Failed):
        return found
    try:
        refuse_odd_tree(found.packet.arrays, "upload")
    except BadPacket as error:
        return Failed(found.packet.sender, found.packet.phase, f"its packet was refused: {error}", "packet")
    return found


def _of_stacks(event: Event) -> Event:
    """An event of `Device`, reworded: here it concerns a stack in a worker process, not a GPU."""
    if isinstance(event, Impossible) and event.what == RECORDED:
        return Impossible("stacks", event.reason, event.phase)
    return event
