"""The trial that decides how worker processes run the clients of a training phase.

It times clients one by one with kernels in the plain order, one by one with kernels channels last, and in a stack; the
fastest is chosen.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fewfed import tree
from fewfed.engine.events import Event
from fewfed.engine.executors.workers.stacking import Stacks
from fewfed.engine.job import Job
from fewfed.engine.layout import Layout, has_kernels
from fewfed.engine.lending import Lender
from fewfed.engine.outcomes import Failed, Finished
from fewfed.engine.turn import Member, context_of, run_turn
from fewfed.phase import Clock, Phase
from fewfed.plan import Plan
from fewfed.tree import Tree

WIDTH = 32
"""Clients of one stack where timing decides. Twice as many save only a seventh of the time, for twice the memory."""

LEAST = 8
"""Fewest clients of a phase in one process for which stacks are tried. In stacks of 8 an MLP takes two thirds of the
time."""

STEP_LIMIT = 2e-3
"""Seconds of a client step above which stacks are not tried. An MLP (0.4 ms) gains much, a small CNN on 8x8 digits
(1.3 ms) a little; LeNet-5 (1.8 ms and more) and larger networks gain nothing or get slower. A slow step is mostly
arithmetic, of which a stack saves nothing, and its trial would take long."""

SHORT = 10.0
"""Seconds of training in one process, over the whole run, below which stacks are not tried: the first stack in a
process loads parts of torch for a second, and a short run would not get that back."""

MARGIN = 0.8
"""A stack is chosen if it takes less than this part of the one-by-one time. The gain must be clear, so that repeated
runs rarely choose differently."""

LAYOUT_MARGIN = 0.95
"""The same for channels last, whose gain is smaller but whose trial is more exact."""

TRIAL_STEPS = 10
"""Most steps of a turn in a trial: few, so that a trial costs a fraction of a round, but enough that the fixed cost of
a stack does not count for much more than in a full turn."""

TIMED_SECONDS = 0.05
"""Seconds that one timing of a layout should take at least; it sets the number of steps."""

TIMINGS = 3
"""Timings of each layout. The shortest counts, because disturbances only make one longer."""

FEWEST_STEPS = 2

_now = time.process_time  # Time of this process only: other processes on the machine do not disturb it.


class Way(StrEnum):
    """How a worker runs the clients it gets."""

    ONE_BY_ONE = "one by one"
    CHANNELS_LAST = "one by one channels last"
    STACKED = "side by side"


@dataclass(frozen=True)
class Choice:
    """How a phase's clients are run, and why."""

    way: Way
    why: str


@dataclass(frozen=True)
class Question:
    """What a trial is to find out."""

    layout: Layout
    stacks: bool
    """Whether clients may be stacked."""
    more: bool
    """Whether a process may get more of the phase than the members of the trial."""


def one_by_one(layout: Layout) -> Way:
    """How clients are run one by one where nothing is tried."""
    return Way.CHANNELS_LAST if layout == "channels_last" else Way.ONE_BY_ONE


def tried(
    job: Job, phase: Phase, clock: Clock, shared: Tree, members: Sequence[Member], question: Question
) -> Choice | None:
    """The faster way; none where it is clear beforehand, without timing, that a trial would not pay."""
    bench = _Bench(job, phase, clock, shared)
    steps = clock.rounds * sum(map(bench.planned_steps, members))
    layouts = question.layout == "auto" and has_kernels(job.net.model()["params"]) and steps >= _worth(FEWEST_STEPS)
    stacks = question.stacks and len(members) >= LEAST
    way = one_by_one(question.layout)
    if not layouts and not stacks:
        return None
    first = next(
        (member for member in members if isinstance(bench.run(way, [member], FEWEST_STEPS)[0], Finished)), None
    )
    if first is None:
        return Choice(way, f"without a trial: all of the first {len(members)} failed")
    a_turn = _enough(bench.step_seconds(way, [first], FEWEST_STEPS))
    a_step = bench.step_seconds(way, [first], a_turn)
    said = []
    if layouts and steps < _worth(a_turn):
        said.append(f"without a trial of channels last: under {_worth(a_turn)} steps a process")
    elif layouts:
        way, a_step, why = _faster_layout(bench, first, a_turn)
        said.append(why)
    if stacks:
        way, why = _stacked_or(way, bench, members, a_step, math.inf if question.more else a_step * steps)
        said.append(why)
    return Choice(way, "; ".join(said))


def _faster_layout(bench: _Bench, member: Member, steps: int) -> tuple[Way, float, str]:
    """The way, the time of a step in it, and what was seen."""
    ways = (Way.ONE_BY_ONE, Way.CHANNELS_LAST)
    # The first turn of each kind is slower (caches are filled), so it is not timed.
    as_it_is, (last,) = (
        bench.step_seconds(Way.ONE_BY_ONE, [member], steps),
        bench.run(Way.CHANNELS_LAST, [member], steps),
    )
    if isinstance(last, Failed):
        return Way.ONE_BY_ONE, as_it_is, f"since {Way.CHANNELS_LAST} fails: {' '.join(last.reason.split())}"
    times = dict.fromkeys(ways, math.inf)
    for _ in range(TIMINGS):
        for way in ways:
            times[way] = min(times[way], bench.step_seconds(way, [member], steps))
    gains = times[Way.CHANNELS_LAST] < LAYOUT_MARGIN * times[Way.ONE_BY_ONE]
    chosen = Way.CHANNELS_LAST if gains else Way.ONE_BY_ONE
    plain, reordered = (f"{1e3 * times[way]:.3f} ms" for way in ways)
    return chosen, times[chosen], f"timed: plain {plain}, channels last {reordered} a step"


def _stacked_or(way: Way, bench: _Bench, members: Sequence[Member], a_step: float, whole: float) -> tuple[Way, str]:
    """Stacked, or else `way`. `a_step`: seconds of a step in that way; `whole`: of a process's training in the run."""
    if a_step > STEP_LIMIT:
        return way, f"without a trial of stacks: a step takes {1e3 * a_step:.2f} ms, over {1e3 * STEP_LIMIT:g} ms"
    if whole < SHORT:
        return way, f"without a trial of stacks: the run trains for {whole:.1f} s a process, under {SHORT:g} s"
    if events := bench.stacking_events(members, TRIAL_STEPS):
        return way, f"since {events[0]}"
    together = bench.step_seconds(Way.STACKED, members, TRIAL_STEPS)
    apart = bench.step_seconds(way, members, TRIAL_STEPS)
    why = f"timed on {len(members)}: {way} {1e3 * apart:.3f} ms, stacked {1e3 * together:.3f} ms a client step"
    return (Way.STACKED if together < MARGIN * apart else way), why


def _enough(a_step: float) -> int:
    """Steps of a turn that is timed."""
    return max(FEWEST_STEPS, min(TRIAL_STEPS, math.ceil(TIMED_SECONDS / max(a_step, 1e-6))))


def _worth(steps: int) -> int:
    """Steps a process must take in the whole run for a trial of layouts to pay, even with the smallest accepted gain;
    `steps`: those of one turn in the trial."""
    return math.ceil(2 * (1 + TIMINGS) * steps / (1 - LAYOUT_MARGIN))


@dataclass(frozen=True)
class _Brief(Plan):
    """A plan of which only the first steps are taken."""

    most: int = TRIAL_STEPS

    def steps(self, count: int, epochs: int) -> int:
        return min(self.most, super().steps(count, epochs))


class _Bench:
    """Runs and times short turns of a phase in any way."""

    def __init__(self, job: Job, phase: Phase, clock: Clock, shared: Tree) -> None:
        self._job, self._phase, self._clock, self._shared = job, phase, clock, shared
        self._stacks: dict[int, tuple[Stacks, Lender]] = {}

    def planned_steps(self, member: Member) -> int:
        """Steps of a whole turn; 0 for a client whose rows cannot be read."""
        try:
            ctx = context_of(self._job, self._phase, self._clock, self._shared, member)
            return ctx.plan.steps(len(self._phase.does.data(ctx)), self._phase.epochs)
        except Exception:  # Its turn will say what is wrong with it.
            return 0

    def run(self, way: Way, members: Sequence[Member], steps: int) -> list[Finished | Failed]:
        if way is Way.STACKED:
            return self._stacked(members, steps)[0]
        job, last = self._brief(steps), way is Way.CHANNELS_LAST
        return [run_turn(job, self._phase, self._clock, self._shared, member, last) for member in members]

    def step_seconds(self, way: Way, members: Sequence[Member], steps: int) -> float:
        """Seconds of a client step, with its share of the turn's start and end."""
        began = _now()
        found = self.run(way, members, steps)
        seconds = _now() - began
        return seconds / max(1, sum(one.packet.steps for one in found if isinstance(one, Finished)))

    def stacking_events(self, members: Sequence[Member], steps: int) -> list[Event]:
        """Events when these members are stacked: why some cannot be."""
        return self._stacked(members, steps)[1]

    def _stacked(self, members: Sequence[Member], steps: int) -> tuple[list[Finished | Failed], list[Event]]:
        if steps not in self._stacks:
            self._stacks[steps] = Stacks(self._brief(steps)), Lender(self._brief(steps), tree.detach)
        stacks, lender = self._stacks[steps]
        lender.share(self._shared)
        return stacks.run(self._phase, self._clock, lender, members)

    def _brief(self, steps: int) -> Job:
        plan = self._job.plan
        same = {each.name: getattr(plan, each.name) for each in dataclasses.fields(Plan)}
        short = _Brief(**same, most=steps)
        return dataclasses.replace(self._job, plan=short)
