"""The executor `cuda` for one GPU. Its modes: `graphs` (one recorded step a stream), `stacked` (clients in one
tensor).

Both are timed on the first clients, and the faster one is kept. Methods need no special code: a step is recorded if
that is possible, and otherwise run step by step on the device (mode `eager`); an event gives the reason.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch

from fewfed import tree
from fewfed.data.federation import HeldOut
from fewfed.engine import asking, layout
from fewfed.engine.choices import Answer, Choices
from fewfed.engine.events import Chosen, Event, Impossible
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.cuda.flags import flags_for
from fewfed.engine.executors.cuda.lane import ReadsPadding, Trained, power_of_two
from fewfed.engine.executors.cuda.lanes import Lanes
from fewfed.engine.executors.cuda.options import Mode, Options
from fewfed.engine.executors.cuda.packed import DrawsDiffer
from fewfed.engine.executors.cuda.prepare import Preparation, Prospect
from fewfed.engine.executors.cuda.ready import UNEVEN, ReadyTurn
from fewfed.engine.executors.cuda.reports import Reports
from fewfed.engine.executors.cuda.rows import DeviceFederation
from fewfed.engine.executors.cuda.watch import CannotCapture
from fewfed.engine.executors.local import LocalExecutor
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.lending import Glance, Lender, difference, returned
from fewfed.engine.outcomes import Failed, Finished, Outcome
from fewfed.engine.reception import Reception
from fewfed.engine.scoring import Answered, evaluation_rows, rows_of, scored
from fewfed.engine.turn import Member, failed, finished, refuse_broken, run_turn
from fewfed.errors import in_one_line
from fewfed.method import Report
from fewfed.phase import Clock, Phase
from fewfed.task import Score
from fewfed.tree import Tree

RECORDED = "recorded steps"
_WORTH_TRYING = 120.0
"""Kernels channels last and fused parts are tried only if more seconds of training are left; a trial takes 15 to
20."""
_NOTHING = "there is nothing to fuse"
_EXPECTED = 8
"""How many turns ahead threads may start to draw noise."""
_AT_ONCE = 1024
"""Most clients whose results are on the device at the same time; larger phases are run in blocks of this size."""


@dataclass(frozen=True)
class _Ended:
    """Turns that are queued on the device up to their end, and their reports."""

    trained: Trained
    reports: tuple[Report | Exception, ...]


@dataclass
class _Trial:
    """What is timed to choose a way to compute, and the times so far."""

    clock: Clock
    shared: Tree
    block: list[Prospect]
    seconds: dict[Mode, float] = field(default_factory=dict)
    """A client step in each mode."""
    left: int = 0
    """Client steps until the end of the run."""


class Device(LocalExecutor):
    """Runs phases on one device. Agrees with `Sequential` to rounding."""

    def __init__(
        self,
        job: Job,
        homes: SimulatedHomes | None = None,
        options: Options | None = None,
        choices: Choices | None = None,
    ) -> None:
        """`choices`: what was found by timing before, so that it is not timed again."""
        super().__init__(job, homes)
        self._options = options or Options()
        self._choices = choices or Choices()
        self._device = torch.device(self._options.device)
        self._host = job
        rows = DeviceFederation(job.federation, self._device, in_one_table=job.adversary is None)
        self._job = dataclasses.replace(job, federation=rows)
        self._events: list[Event] = []
        self._lanes = Lanes(self._job, self._options, self._device, self._events)
        self._preparation = Preparation(self._job, self._device)
        self._reports = Reports()
        self._lender = Lender(self._job)
        self._compared: set[str] = set()
        """Phases whose steps were seen to leave the broadcast as it is."""
        self._mode: Mode | None = None if self._options.mode == "auto" else self._options.mode
        self._reasons: set[Event] = set()
        self._flags = ExitStack()
        self._flags.enter_context(flags_for(self._options))
        if job.net.is_random:  # It is seeded for every phase.
            random: Any = torch.cuda if self._device.type == "cuda" else torch.random
            self._flags.callback(random.set_rng_state, random.get_rng_state())

    def place(self, server: Tree) -> Tree:
        return tree.to(server, self._device)

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        phase, clock = briefing.phase, briefing.clock
        reception = Reception(briefing, self.homes)
        self._lender.share(tree.to(briefing.shared, self._device))
        at_home = self.at_home(phase, members)
        while part := [self._here(member) for member in islice(at_home, _AT_ONCE)]:
            together = self._together_unchanged(phase, clock, part)
            if together is None:
                for member in part:
                    yield reception.take(member.client, self._lender.turn(phase, clock, member))
                continue
            yield from (found for _, found in together if isinstance(found, Failed))
            done = [(client, found) for client, found in together if isinstance(found, Finished)]
            yield from reception.take_many(done, len(self._job.federation))
        if self._device.type == "cpu":  # On a GPU the host would wait for it.
            self._lender.finish(phase)

    def turns(
        self, phase: Phase, clock: Clock, shared: Tree, members: Sequence[Member]
    ) -> Iterator[tuple[int, Finished | Failed]]:
        """The result of every member, unchecked; for stacks in worker processes."""
        together = self._together(phase, clock, shared, members)
        if together is not None:
            yield from together
        else:
            for member in members:
                yield member.client, run_turn(self._job, phase, clock, shared, member)

    def evaluate(self, models: Iterable[Tree], on: HeldOut = "test") -> list[Score]:
        """Outputs are made on the device and scored on the host, so that every executor counts with the same code."""
        return [scored(self._host, said.output, 0, len(said.output), on) for said in self.answers(models, on)]

    def answers(self, models: Iterable[Tree], on: HeldOut = "test") -> Iterator[Answered]:
        """All rows of a model at once."""
        held_out = rows_of(self._job, on)
        at_once = 4 * evaluation_rows(self._job)
        for number, model in enumerate(models):
            here = tree.to(model, self._device)
            if self._lanes.precision.channels_last:
                here["params"] = layout.channels_last(here["params"])
            with torch.no_grad():
                parts = [
                    self._job.net.apply(here, asking.presented(self._job, here, x), train=False)
                    for x in torch.split(held_out.x, at_once)
                ]
            yield Answered(number, 0, layout.plain(torch.cat(parts).cpu()))

    def events(self) -> list[Event]:
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        self._preparation.close()
        self._lanes.clear()
        self._flags.close()

    def _here(self, member: Member) -> Member:
        """The member with what is its own on the device; not what the server or the store holds themselves."""
        here = tree.clone if self._device.type == "cpu" else partial(tree.to, device=self._device)
        return Member(member.client, here(member.personal), here(member.state), here(member.moments), member.book)

    def _together_unchanged(
        self, phase: Phase, clock: Clock, members: Sequence[Member]
    ) -> list[tuple[int, Finished | Failed]] | None:
        """As `_together`; none as well if their method changed what they were lent. One by one, its error is named."""
        if self._lender.spoils(phase):
            return None
        own = Glance(*(one for member in members for one in (member.personal, member.state)))
        found = self._together(phase, clock, self._lender.shared, members)
        return found if self._lender.unchanged(phase, own.unchanged, worked=found is not None) else None

    def _together(
        self, phase: Phase, clock: Clock, shared: Tree, members: Sequence[Member]
    ) -> list[tuple[int, Finished | Failed]] | None:
        """Run all members with recorded steps, in order. None if there are no steps, or recording fails."""
        if not phase.epochs or self._mode == "eager":
            return None
        prospects: list[Prospect] = []
        found: dict[int, Finished | Failed] = {}
        try:
            if self._job.keeps_moments(phase):
                raise CannotCapture("moments of its optimiser stay from round to round (reset = 'never')")
            for index, prospect in enumerate(self._preparation.prospects(phase, clock, shared, members)):
                if isinstance(prospect, Failed):
                    found[index] = prospect
                else:
                    prospects.append(prospect)
            ended = self._train_exactly_if_needed(phase, clock, shared, prospects)
        except (torch.cuda.OutOfMemoryError, KeyboardInterrupt):
            raise
        except BaseException as error:  # Run one by one, a client that is the cause fails alone, and says why.
            reason = Impossible(RECORDED, in_one_line(error), phase.name)
            if reason not in self._reasons:
                self._reasons.add(reason)
                self._events.append(reason)
            return None
        found |= self._closed(ended, members)
        return [(member.client, found[index]) for index, member in enumerate(members)]

    def _closed(self, ended: list[_Ended], members: Sequence[Member]) -> dict[int, Finished | Failed]:
        """The results of queued turns, by their index among the members."""
        if not ended:
            return {}
        # The only place in a phase where the host waits for the device.
        sums = iter(torch.cat([block.trained.sums for block in ended]).tolist())
        found: dict[int, Finished | Failed] = {}
        for block in ended:
            for turn, report in zip(block.trained.turns, block.reports, strict=True):
                *row, norm = next(sums)
                terms = {name: value / turn.steps for name, value in zip(block.trained.names, row, strict=True)}
                found[turn.index] = self._outcome(turn, report, members[turn.index].book, terms, norm)
        return found

    def _train_exactly_if_needed(
        self, phase: Phase, clock: Clock, shared: Tree, prospects: list[Prospect]
    ) -> list[_Ended]:
        try:
            return self._train(phase, clock, shared, prospects)
        except ReadsPadding:  # The loss reads a whole buffer, spare rows included, instead of rows it drew.
            self._lanes.keep_exact(phase)
            return self._train(phase, clock, shared, prospects)
        except DrawsDiffer:
            if self._options.mode == "stacked":
                raise
            uneven = [dataclasses.replace(prospect, batch=UNEVEN) for prospect in prospects]
            return self._train(phase, clock, shared, uneven)

    def _train(self, phase: Phase, clock: Clock, shared: Tree, prospects: list[Prospect]) -> list[_Ended]:
        ended: list[_Ended] = []
        if not prospects:
            return ended
        static = self._lanes.place(phase, shared)
        self._seed(phase, clock, prospects[0])
        groups: dict[int, list[Prospect]] = {}
        for prospect in sorted(prospects, key=lambda prospect: -prospect.steps):
            groups.setdefault(prospect.batch, []).append(prospect)
        glance = Glance(static)
        for group in groups.values():
            mode = (
                self._mode_for_uneven()
                if group[0].batch == UNEVEN
                else self._mode or self._choose(clock, static, group)
            )
            ended += self._run_group(mode, clock, static, group)
        self._lanes.join()
        unchanged = glance.unchanged() and (phase.name in self._compared or not difference(shared, static))
        self._compared.add(phase.name)
        if not unchanged:
            self._lanes.forget(phase)
            raise CannotCapture("its steps change what was broadcast")
        return ended

    def _mode_for_uneven(self) -> Mode:
        if self._options.mode == "stacked":
            raise CannotCapture("its batches differ in size (batch_rule 'fill' keeps them equal)")
        return "graphs"

    def _seed(self, phase: Phase, clock: Clock, first: Prospect) -> None:
        """Seed networks that draw (dropout) from the plan. The numbers repeat, but are not those of a CPU."""
        if self._job.net.is_random:
            seed = self._job.plan.network_seed(clock.round, phase.name, first.ctx.client)
            (torch.cuda if self._device.type == "cuda" else torch.random).manual_seed(seed)

    def _run_group(self, mode: Mode, clock: Clock, shared: Tree, group: list[Prospect]) -> list[_Ended]:
        """Queue a group block by block: the device works on one while the host prepares the next."""
        width = 1 if mode == "graphs" or len(group) < 3 else min(self._options.stack, power_of_two(len(group)))
        ended = []
        for number, start in enumerate(range(0, len(group), width)):
            self._preparation.expect(group[start : start + max(2 * width, _EXPECTED)])
            block = self._preparation.turns(group[start : start + width])
            if not number and returned(block[0].ctx.shared, block[0].work):
                raise CannotCapture("'begin' returns what was broadcast without a copy of it")
            uneven = width > 1 and (len(block) < width or block[0].steps != block[-1].steps)
            lane = self._lanes.of(clock, shared, block, width, uneven, number)
            lane.follow()
            with lane.queue():
                lane.load(block)
                block = [turn.loaded() for turn in block]
                lane.run(block)
                trained = lane.result(block)
                ended.append(_Ended(trained, self._reports.of(trained)))
        return ended

    def _choose(self, clock: Clock, shared: Tree, group: list[Prospect]) -> Mode:
        """Choose the mode: as remembered, or by timing both on the first clients."""
        trial = _Trial(clock, shared, group[: self._options.stack])
        mode = self._decided("mode", ("graphs", "stacked"), lambda: self._faster_mode(trial))
        self._mode = "graphs" if mode == "graphs" else "stacked"
        if mode == "graphs":
            trial.left = sum(prospect.steps for prospect in group) * (clock.rounds - clock.round)
            self._choose_layout(trial)
            self._choose_fusing(trial)
        return self._mode

    def _decided(self, aspect: str, possible: tuple[str, ...], find: Callable[[], Answer]) -> str:
        question = f"cuda, {aspect}"
        answer = self._choices.recall(question)
        if answer is None or answer.value not in possible:
            found = find()
            answer = self._choices.settle(question, found)
            answer = answer if answer.value in possible else found
        if not answer.why.endswith(_NOTHING):
            self._events.append(Chosen(aspect, answer.value, answer.why))
        return answer.value

    def _faster_mode(self, trial: _Trial) -> Answer:
        """Time both modes and keep the faster one."""
        modes: tuple[Mode, ...] = ("graphs", "stacked")
        for mode in modes:
            try:
                trial.seconds[mode] = self._timed(mode, trial.clock, trial.shared, trial.block)
            except (RuntimeError, NotImplementedError) as error:
                self._events.append(Impossible(f"mode '{mode}'", in_one_line(error)))
                self._lanes.drop(stacks=mode == "stacked")
        if not trial.seconds:
            raise CannotCapture("neither mode can run it")
        best = min(trial.seconds, key=lambda mode: trial.seconds[mode])
        self._lanes.drop(stacks=best != "stacked")
        shown = ", ".join(f"{mode} {1e3 * seconds:.3f} ms" for mode, seconds in trial.seconds.items())
        return Answer(best, f"timed on {len(trial.block)} clients, {shown} a client step")

    def _choose_layout(self, trial: _Trial) -> None:
        """In strict float32, choose the memory order of convolution kernels."""
        if self._options.layout != "auto" or self._lanes.precision.channels_last:
            return
        if not layout.has_kernels(self._job.net.model()["params"]):
            return
        wanted = self._decided("layout", ("plain", "channels_last"), lambda: self._faster_layout(trial))
        if self._lanes.precision.channels_last != (wanted == "channels_last"):
            self._lanes.lay_out(channels_last=wanted == "channels_last")

    def _faster_layout(self, trial: _Trial) -> Answer:
        plain = self._captured_seconds(trial)
        if plain * trial.left <= _WORTH_TRYING:
            return Answer("plain", f"without a trial, the run trains for {plain * trial.left:.0f} s more")
        said = len(self._events)
        self._lanes.lay_out(channels_last=True)
        try:
            last = self._timed("graphs", trial.clock, trial.shared, trial.block)
        except (RuntimeError, NotImplementedError) as error:
            last, why = math.inf, in_one_line(error)
        else:
            why = f"{1e3 * last:.3f} ms a client step channels last, {1e3 * plain:.3f} ms plain"
        if last >= plain:
            self._lanes.lay_out(channels_last=False)
            del self._events[said:]
        trial.seconds["graphs"] = min(last, plain)
        return Answer("channels_last" if last < plain else "plain", why)

    def _choose_fusing(self, trial: _Trial) -> None:
        """Whether marked functions are fused by torch's compiler before steps are captured."""
        fusion = self._lanes.fusion
        if self._options.compiled != "auto":
            return
        # Methods of one comparison share their choices, but not what there is to fuse.
        aspect = f"fused parts of {self._job.method.label}"
        wanted = self._decided(aspect, ("yes", "no"), lambda: self._faster_parts(trial))
        if fusion.on != (wanted == "yes"):
            self._lanes.clear()
            fusion.on = wanted == "yes"

    def _faster_parts(self, trial: _Trial) -> Answer:
        fusion, plain = self._lanes.fusion, self._captured_seconds(trial)
        if not fusion.met:  # Only a captured step shows it.
            return Answer("no", _NOTHING)
        if plain * trial.left <= _WORTH_TRYING:
            return Answer("no", f"without a trial, the run trains for {plain * trial.left:.0f} s more")
        self._lanes.clear()
        fusion.on = True
        fused = self._timed("graphs", trial.clock, trial.shared, trial.block)
        if not fusion.on:
            return Answer("no", "they could not be compiled")
        fusion.on = fused < plain
        if not fusion.on:
            self._lanes.clear()
        why = f"{1e3 * fused:.3f} ms a client step with, {1e3 * plain:.3f} ms without"
        return Answer("yes" if fused < plain else "no", why)

    def _captured_seconds(self, trial: _Trial) -> float:
        if "graphs" not in trial.seconds:
            trial.seconds["graphs"] = self._timed("graphs", trial.clock, trial.shared, trial.block)
        return trial.seconds["graphs"]

    def _timed(self, mode: Mode, clock: Clock, shared: Tree, block: list[Prospect]) -> float:
        """Seconds of a client step, after a first pass that records it."""
        seconds = []
        for _ in range(3):  # The first run captures.
            began = time.perf_counter()
            held = self._run_group(mode, clock, shared, block)
            self._wait()
            seconds.append(time.perf_counter() - began)
            # Freed only now: a lane may still read the memory of its turns until the device is done.
            del held
        return min(seconds[1:]) / sum(prospect.steps for prospect in block)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _outcome(
        self, turn: ReadyTurn, report: Report | Exception, book: Tree, terms: dict[str, float], norm: float
    ) -> Finished | Failed:
        try:
            refuse_broken(terms, norm)
            if isinstance(report, Exception):
                raise report
            return finished(self._job, report, turn.ctx, book, turn.steps, terms)
        except Exception as error:
            return failed(turn.ctx.client, turn.ctx.phase, error)
