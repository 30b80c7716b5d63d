"""Clients side by side in one worker process, and the trial that says whether a phase gains by it.

Tiny networks spend most of a step in calls, not in arithmetic; stacked, one call serves many clients. Larger ones lose.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from fewfed.engine.client import run_member
from fewfed.engine.device.executor import Device, DeviceOptions
from fewfed.engine.job import Block, Done, Job, Member, Outcome
from fewfed.phase import Clock, Phase
from fewfed.tree import Tree

WIDTH = 32
"""Clients of one stack where timing decides: twice as many take only a seventh less time a step, for twice the room."""

LEAST = 8
"""Clients a process must get of a phase to be worth a trial: an MLP still takes two thirds of the time in eights."""

STEP_LIMIT = 2e-3
"""Seconds of a client step above which no trial is made. An MLP (0.4 ms) gains much and a small CNN of 8x8 digits
(1.3 ms) something; LeNet-5 (1.8 ms and more) and larger networks gain nothing or lose. A slower step is arithmetic, of
which a stack saves nothing, and its trial would take long."""

SHORT = 10.0
"""Seconds of training in one process, over the whole run, below which no trial is made: the first stack in a process
loads parts of torch for a second, and a short run would not get that back."""

MARGIN = 0.8
"""Stacked must take less than this part of one-by-one time: a clear gain, so that repeated runs rarely choose
differently although no two timings are the same."""

TRIAL_STEPS = 10
"""Steps of a turn in a trial, as far as whole epochs allow: few, so that it costs a fraction of a round, but enough for
what a stack costs once a turn not to count for much more than it will."""

_now = time.process_time  # Other processes on the machine do not count.


@dataclass(frozen=True)
class Choice:
    """How a phase's clients are run, and why."""

    phase: str
    stacked: bool
    why: str

    def __str__(self) -> str:
        return f"phase '{self.phase}': clients {'side by side' if self.stacked else 'one by one'}, {self.why}"

    @classmethod
    def told(cls, event: str) -> Choice | None:
        """The choice that an event of an earlier part of the run tells of."""
        found = re.fullmatch(r"phase '(.+?)': clients (side by side|one by one), (.*)", event)
        return cls(found[1], found[2] == "side by side", found[3]) if found else None


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
        self, phase: Phase, clock: Clock, shared: Tree, members: Sequence[Member]
    ) -> tuple[list[Outcome], list[str]]:
        """An outcome for every member, in order, and what a reader of the run should know."""
        device = self._device(len(members))
        found: dict[int, Outcome] = {}
        try:
            for outcome in device.run(phase, clock, shared, members):
                for one in outcome.done if isinstance(outcome, Block) else (outcome,):
                    found[one.client] = one
        except Exception as error:  # Whatever it is, a client alone shows whether it is to blame.
            first = (str(error).strip().splitlines() or [""])[0]
            event = _cannot(f"phase '{phase.name}'", f"{type(error).__name__}: {first}")
            return self.run_alone(phase, clock, shared, members), [event]
        return [found[member.client] for member in members], [_of_the_cpu(event) for event in device.events()]

    def _device(self, size: int) -> Device:
        if size not in self._devices:
            self._devices[size] = Device(self._job, DeviceOptions(device="cpu", plan="stacked", width=size))
        return self._devices[size]

    def run_alone(self, phase: Phase, clock: Clock, shared: Tree, members: Sequence[Member]) -> list[Outcome]:
        return [run_member(self._job, phase, clock, shared, member) for member in members]


def tried(job: Job, phase: Phase, clock: Clock, shared: Tree, members: Sequence[Member], more: bool) -> Choice:
    """Time a bundle one by one and stacked, each warm. `more`: a process may get more of the phase than these."""
    stacks = Stacks(job)
    short = dataclasses.replace(phase, epochs=1)

    def alone(some: Sequence[Member]) -> list[Outcome]:
        return stacks.run_alone(short, clock, shared, some)

    def one_by_one(why: str) -> Choice:
        return Choice(phase.name, False, why)

    for first in members:
        (outcome,) = alone([first])
        if isinstance(outcome, Done):
            break
    else:
        return one_by_one(f"without a trial: all of the first {len(members)} failed")
    epochs = -(-TRIAL_STEPS // max(1, outcome.steps))
    short = dataclasses.replace(phase, epochs=min(phase.epochs, epochs))
    turn = _timed(lambda: alone([first]))
    if turn.a_step > STEP_LIMIT:
        return one_by_one(f"without a trial: a step takes {1e3 * turn.a_step:.2f} ms, over {1e3 * STEP_LIMIT:g} ms")
    whole = turn.seconds * phase.epochs / short.epochs * len(members) * clock.rounds
    if whole < SHORT and not more:
        return one_by_one(f"without a trial: the run trains for {whole:.1f} s a process, under {SHORT:g} s")
    _, events = stacks.run(short, clock, shared, members)
    if events:
        return one_by_one(f"since {events[0]}")
    together = _timed(lambda: stacks.run(short, clock, shared, members)[0]).a_step
    apart = _timed(lambda: alone(members)).a_step
    times = f"one by one {1e3 * apart:.3f} ms, stacked {1e3 * together:.3f} ms a client step"
    return Choice(phase.name, together < MARGIN * apart, f"timed on {len(members)}: {times}")


@dataclass(frozen=True)
class _Timing:
    seconds: float
    steps: int

    @property
    def a_step(self) -> float:
        return self.seconds / max(1, self.steps)


def _timed(run: Callable[[], list[Outcome]]) -> _Timing:
    began = _now()
    outcomes = run()
    return _Timing(_now() - began, sum(outcome.steps for outcome in outcomes if isinstance(outcome, Done)))


def _of_the_cpu(event: str) -> str:
    """What a `Device` says of itself, where it is no device but a worker process."""
    phase, found, reason = event.partition(" runs step by step on the device: ")
    return _cannot(phase, reason) if found else event


def _cannot(phase: str, reason: str) -> str:
    return f"{phase} runs clients that cannot be stacked one by one: {reason}"
