"""The executor for one accelerator. Two plans: `graphs` (a captured step per stream), `stacked` (clients side by side).

The plan is chosen by timing both on the first block of clients. Methods are not asked to be fast: whatever a loss does
is captured if it can be, and run step by step on the device, with the reason said, if it cannot.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from fewfed import tree
from fewfed.engine import layout
from fewfed.engine.choices import Answer, Choices
from fewfed.engine.client import evaluation_rows, run_member, scored
from fewfed.engine.device.lane import Finished, Turn
from fewfed.engine.device.lanes import Lanes, ReadsPadding, power_of_two
from fewfed.engine.device.options import DeviceOptions, PlanName
from fewfed.engine.device.prepare import Preparation, Prospect
from fewfed.engine.device.reports import Reports
from fewfed.engine.device.rows import DeviceFederation
from fewfed.engine.device.watch import CannotCapture
from fewfed.engine.job import Block, Done, Failed, Job, Member, Outcome
from fewfed.errors import ConfigError, FewfedError, in_one_line
from fewfed.method import Report
from fewfed.phase import Clock, Phase
from fewfed.task import Score
from fewfed.tree import Tree

_WORTH_TRYING = 120.0
"""Seconds of training left in a run from which on kernels channels last and fused parts are tried: 15 to 20 s each."""
_NOTHING = "there is nothing to fuse"
_EXPECTED = 8
"""Turns whose noise may be begun before they are asked for."""
_AT_ONCE = 1024
"""Clients whose results stand on the device together; a phase of everybody (set-up, say) is run in such parts."""


@dataclass(frozen=True)
class _Ended:
    """Turns that are queued to their end, and what their clients report."""

    finished: Finished
    reports: tuple[Report | Exception, ...]


@dataclass
class _Trial:
    """What is timed to choose between ways to compute, and what was seen so far."""

    clock: Clock
    shared: Tree
    block: list[Prospect]
    seconds: dict[PlanName, float] = field(default_factory=dict)
    """A client step in each plan."""
    left: int = 0
    """Client steps until the end of the run."""


class Device:
    """Runs phases on one device. Agrees with `Sequential` to rounding."""

    def __init__(self, job: Job, options: DeviceOptions | None = None, choices: Choices | None = None) -> None:
        """`choices`: what was found by timing before, so that it is not timed again."""
        self._options = options or DeviceOptions()
        self._choices = choices or Choices()
        self._device = torch.device(self._options.device)
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise ConfigError("executor 'cuda' found no CUDA device: use --executor workers")
        self._host = job
        self._job = dataclasses.replace(job, federation=DeviceFederation(job.federation, self._device))
        self._events: list[str] = []
        self._lanes = Lanes(self._job, self._options, self._device, self._events)
        self._preparation = Preparation(self._job, self._device)
        self._reports = Reports(job.method)
        self._chosen: PlanName | None = None if self._options.plan == "auto" else self._options.plan
        self._reasons: set[str] = set()
        allow = self._options.precision != "float32"
        torch.backends.cuda.matmul.allow_tf32 = allow
        torch.backends.cudnn.allow_tf32 = allow
        torch.backends.cudnn.benchmark = True  # Shapes are fixed, so the fastest algorithm is worth finding once.

    def place(self, server: Tree) -> Tree:
        return tree.to(server, self._device)

    def run(self, phase: Phase, clock: Clock, shared: Tree, members: Iterable[Member]) -> Iterator[Outcome | Block]:
        shared = tree.to(shared, self._device)
        waiting: list[Member] = []
        for member in members:
            waiting.append(self._here(member))
            if len(waiting) == _AT_ONCE:
                yield from self._run_some(phase, clock, shared, waiting)
                waiting = []
        if waiting:
            yield from self._run_some(phase, clock, shared, waiting)

    def evaluate(self, models: Iterable[Tree]) -> list[Score]:
        """Outputs are made on the device and scored on the host, so that every executor counts with the same code."""
        test = self._job.federation.test
        at_once = 4 * evaluation_rows(self._job)
        scores = []
        with torch.no_grad():
            for model in models:
                here = tree.to(model, self._device)
                if self._lanes.precision.channels_last:
                    here["params"] = layout.channels_last(here["params"])
                parts = [self._job.net.apply(here, x, train=False) for x in torch.split(test.x, at_once)]
                scores.append(scored(self._host, layout.plain(torch.cat(parts).cpu()), 0, len(test)))
        return scores

    def events(self) -> list[str]:
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        self._preparation.close()
        self._lanes.clear()

    def _here(self, member: Member) -> Member:
        return Member(member.client, tree.to(member.personal, self._device), tree.to(member.state, self._device))

    def _run_some(
        self, phase: Phase, clock: Clock, shared: Tree, members: Sequence[Member]
    ) -> Iterator[Outcome | Block]:
        if not phase.epochs or self._chosen == "eager":
            for member in members:
                yield run_member(self._job, phase, clock, shared, member)
            return
        prospects: list[Prospect] = []
        outcomes: dict[int, Outcome] = {}
        try:
            for index, prospect in enumerate(self._preparation.prospects(phase, clock, shared, members)):
                if isinstance(prospect, Failed):
                    outcomes[index] = prospect
                else:
                    prospects.append(prospect)
            ended = self._train_exactly_if_needed(phase, clock, shared, prospects)
        except (CannotCapture, RuntimeError, NotImplementedError) as error:
            reason = f"phase '{phase.name}' runs step by step on the device: {in_one_line(error)}"
            if reason not in self._reasons:
                self._reasons.add(reason)
                self._events.append(reason)
            if isinstance(error, torch.cuda.OutOfMemoryError):
                raise
            for member in members:
                yield run_member(self._job, phase, clock, shared, member)
            return
        yield from self._close_turns(ended, outcomes)

    def _close_turns(self, ended: list[_Ended], outcomes: dict[int, Outcome]) -> Iterator[Outcome | Block]:
        done: dict[int, Done] = {}
        if ended:
            # The one place of a phase where the host waits for the device.
            sums = iter(torch.cat([block.finished.sums for block in ended]).tolist())
            for block in ended:
                for turn, report in zip(block.finished.turns, block.reports, strict=True):
                    *row, norm = next(sums)
                    terms = {name: value / turn.steps for name, value in zip(block.finished.names, row, strict=True)}
                    outcome = _outcome(turn, report, terms, norm)
                    if isinstance(outcome, Failed):
                        outcomes[turn.index] = outcome
                    else:
                        done[turn.index] = outcome
        yield from outcomes.values()
        if done:
            yield Block(tuple(done[index] for index in sorted(done)))

    def _train_exactly_if_needed(
        self, phase: Phase, clock: Clock, shared: Tree, prospects: list[Prospect]
    ) -> list[_Ended]:
        try:
            return self._train(phase, clock, shared, prospects)
        except ReadsPadding:  # The loss reads a whole buffer, not rows it drew.
            self._lanes.keep_exact(phase)
            return self._train(phase, clock, shared, prospects)

    def _train(self, phase: Phase, clock: Clock, shared: Tree, prospects: list[Prospect]) -> list[_Ended]:
        ended: list[_Ended] = []
        if not prospects:
            return ended
        static = self._lanes.place(phase, shared)
        self._seed(phase, clock, prospects[0])
        groups: dict[int, list[Prospect]] = {}
        for prospect in sorted(prospects, key=lambda prospect: -prospect.steps):
            groups.setdefault(prospect.batch, []).append(prospect)
        for group in groups.values():
            plan = self._chosen or self._choose(clock, static, group)
            ended += self._run_group(plan, clock, static, group)
        self._lanes.join()
        return ended

    def _seed(self, phase: Phase, clock: Clock, first: Prospect) -> None:
        """Where the network draws for itself, a phase draws the same each time here, though not what the CPU does."""
        if self._job.net.draws:
            seed = self._job.plan.network_seed(clock.round, phase.name, first.ctx.client)
            (torch.cuda if self._device.type == "cuda" else torch.random).manual_seed(seed)

    def _run_group(self, plan: PlanName, clock: Clock, shared: Tree, group: list[Prospect]) -> list[_Ended]:
        """Queue a group block by block: the device works on one while the host prepares the next."""
        width = 1 if plan == "graphs" or len(group) < 3 else min(self._options.width, power_of_two(len(group)))
        ended = []
        for number, start in enumerate(range(0, len(group), width)):
            self._preparation.expect(group[start : start + max(2 * width, _EXPECTED)])
            block = self._preparation.turns(group[start : start + width])
            uneven = width > 1 and (len(block) < width or block[0].steps != block[-1].steps)
            lane = self._lanes.of(clock, shared, block, width, uneven, number)
            lane.follow()
            with lane.queue():
                lane.load(block)
                lane.run(max(turn.steps for turn in block))
                finished = lane.result(block)
                ended.append(_Ended(finished, self._reports.of(finished)))
        return ended

    def _choose(self, clock: Clock, shared: Tree, group: list[Prospect]) -> PlanName:
        """How this run is computed: as it was before, or by timing on the first clients, captured and warm."""
        trial = _Trial(clock, shared, group[: self._options.width])
        plan = self._decided("plan", ("graphs", "stacked"), lambda: self._faster_plan(trial))
        self._chosen = "graphs" if plan == "graphs" else "stacked"
        if plan == "graphs":
            trial.left = sum(prospect.steps for prospect in group) * (clock.rounds - clock.round)
            self._choose_layout(trial)
            self._choose_fusing(trial)
        return self._chosen

    def _decided(self, aspect: str, possible: tuple[str, ...], find: Callable[[], Answer]) -> str:
        question = f"cuda, {aspect}"
        answer = self._choices.recall(question)
        if answer is None or answer.value not in possible:
            found = find()
            answer = self._choices.settle(question, found)
            answer = answer if answer.value in possible else found
        if not answer.why.endswith(_NOTHING):
            self._events.append(f"{aspect} '{answer.value}': {answer.why}")
        return answer.value

    def _faster_plan(self, trial: _Trial) -> Answer:
        """Time both plans and keep the faster one."""
        for plan in ("graphs", "stacked"):
            try:
                trial.seconds[plan] = self._timed(plan, trial.clock, trial.shared, trial.block)
            except (RuntimeError, NotImplementedError) as error:
                self._events.append(f"plan '{plan}' cannot run this method: {in_one_line(error)}")
        if not trial.seconds:
            raise CannotCapture("neither plan can run it")
        best = min(trial.seconds, key=lambda plan: trial.seconds[plan])
        shown = ", ".join(f"{plan} {1e3 * seconds:.3f} ms" for plan, seconds in trial.seconds.items())
        return Answer(best, f"timed on {len(trial.block)} clients, {shown} a client step")

    def _choose_layout(self, trial: _Trial) -> None:
        """In strict float32, whether kernels of convolutions lie channels last."""
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

    def _timed(self, plan: PlanName, clock: Clock, shared: Tree, block: list[Prospect]) -> float:
        """Seconds a client step, captured and warm."""
        seconds = []
        for _ in range(3):  # The first run captures.
            began = time.perf_counter()
            held = self._run_group(plan, clock, shared, block)
            self._wait()
            seconds.append(time.perf_counter() - began)
            # Only now: memory of a turn must not be used again while a lane may still read it.
            del held
        return min(seconds[1:]) / sum(prospect.steps for prospect in block)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _outcome(turn: Turn, report: Report | Exception, terms: dict[str, float], norm: float) -> Done | Failed:
    client, phase = turn.ctx.client, turn.ctx.phase.name
    broken = [name for name, value in terms.items() if not abs(value) < float("inf")]
    if broken:
        return Failed(client, phase, f"its loss term '{broken[0]}' became {terms[broken[0]]}: try a smaller lr")
    if not norm < float("inf"):
        return Failed(client, phase, "its parameters became NaN or infinite: try a smaller lr")
    if isinstance(report, FewfedError):
        return Failed(client, phase, str(report))
    if isinstance(report, Exception):
        return Failed(client, phase, f"{type(report).__name__}: {report}")
    return Done(client, report.upload, report.state, report.weight, turn.steps, terms)
