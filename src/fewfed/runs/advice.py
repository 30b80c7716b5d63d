"""A short bake-off within a time budget: candidates are measured, given rounds and seeds that fit, and run.

Runs are ordinary ones in a folder, judged on rows that every site holds back. What is planned is written down before
the first of them, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fewfed.engine import storage
from fewfed.errors import RunError
from fewfed.metric import metric_of
from fewfed.runs.candidates import BASELINE
from fewfed.runs.cells import Cell, Explain, LoadedData, Update, explained_plainly, run_cells
from fewfed.runs.comparison import planned, values_for
from fewfed.runs.considered import Considered, Tried
from fewfed.runs.folder import RunFolder
from fewfed.runs.identity import content_of, refuse_other_runs
from fewfed.runs.judged import score
from fewfed.runs.packing import Packing
from fewfed.runs.question import Asked
from fewfed.runs.results import Result
from fewfed.runs.time_plan import MARGIN, Cost, Plan, plan_of
from fewfed.runs.tuning import Axis, grid

PLAN, SEARCH, RUNS, PROBE = "advice-plan.json", "search", "runs", ".probe"
"""Files and folders of an advice. Probes are of use to nobody else, so `fewfed show` does not see them."""
RATES = (1.0, 3.0, 0.3)
"""Learning rates that are tried, in those a method has by itself."""
LR = "training.lr"
_PROBED = 2
_PROBING = 0.35
"""The part of the time that may be spent on measuring; a method that has not come to a first round by then is taken to
cost so many times what the baseline does:"""
_UNKNOWN = 2.0
_STARTING = 1.0  # Seconds that a run takes beside its rounds, about.
_LATE = 2.5
"""There is time for a method that was given up where so many times what another took is left."""

Watch = Callable[[str, Sequence[Cell]], AbstractContextManager[Callable[[Update], None]]]
"""Shows the progress of some cells; the title says what they are for."""


@dataclass(frozen=True)
class Baked:
    """What became of a bake-off."""

    plan: Plan
    rates: Mapping[str, float]
    """The learning rate of each method."""
    results: Mapping[str, Mapping[int, Result]]
    """Finished runs by method and seed."""
    failed: Mapping[str, str]
    """Methods with a run that failed, and why."""
    unfinished: tuple[str, ...]
    """Runs that were stopped at the end of the budget."""
    seconds: float

    @property
    def is_searched(self) -> bool:
        return self.plan.settings > 1


@dataclass
class Bakeoff:
    """All that the steps of a bake-off have in common."""

    asked: Asked
    field: Considered
    own: bool
    """Whether sites' models are judged on their own rows, and not on those of all."""
    data: LoadedData
    packing: Callable[[], Packing]
    watch: Watch
    explain: Explain = explained_plainly
    endings: dict[Path, Update] = dataclasses.field(default_factory=dict)

    def run(self) -> Baked:
        plan = self._kept_plan() or self._planned()
        rates = self._rates(plan)
        cells = self._judged_cells(plan, rates)
        self._run_seeds(plan, cells)
        baked = self._baked(plan, rates, cells)
        while baked.plan.given_up and self.asked.left > _LATE * self._usual(baked):
            baked = self._with_one_more(baked)
        return dataclasses.replace(baked, seconds=time.monotonic() - self.asked.began)

    def _usual(self, baked: Baked) -> float:
        """Seconds that all runs of a method took, in the mean."""
        each = [result.seconds for runs in baked.results.values() for result in runs.values()]
        seeds = max(len(runs) for runs in baked.results.values())
        return seeds * (statistics.fmean(each) + _STARTING) / min(self.packing().most, seeds)

    def _with_one_more(self, baked: Baked) -> Baked:
        """There is time left: the first of the methods that were given up after all, as the others were run."""
        spec, *rest = baked.plan.given_up
        alone = next(each.is_alone for each in self.field.tried if each.spec == spec)
        like = min(baked.plan.rounds.values()) if alone else baked.plan.rounds[BASELINE]
        plan = Plan({spec: like}, baked.plan.settings, ())
        rates = self._rates(plan)
        seeds = set(baked.results[BASELINE])
        cells = {seed: each for seed, each in self._judged_cells(plan, rates).items() if seed in seeds}
        self._run(f"{spec}, for which there is time after all", [cell for each in cells.values() for cell in each])
        results, failed, unfinished = self._sorted(cells)
        whole = Plan({**baked.plan.rounds, spec: like}, baked.plan.settings, tuple(rest))
        if results or failed:
            self._write(whole)
        return Baked(
            whole,
            {**baked.rates, **rates},
            {**baked.results, **results},
            {**baked.failed, **failed},
            (*baked.unfinished, *unfinished),
            baked.seconds,
        )

    def _kept_plan(self) -> Plan | None:
        """The plan that the folder holds, if this bake-off was begun before."""
        place = self.asked.root / PLAN
        if not place.exists():
            return None
        try:
            kept = json.loads(place.read_text(encoding="utf-8"))
            plan = Plan(dict(kept["rounds"]), int(kept["settings"]), tuple(kept["given_up"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"'{place}' is damaged ({error}): choose another --out, or remove the folder") from error
        known = {each.spec for each in self.field.tried}
        if kept.get("asked") != self.asked.identity() or not plan.rounds.keys() <= known:
            raise RunError(f"'{self.asked.root}' holds advice on other questions: choose another --out or remove it")
        return plan

    def _planned(self) -> Plan:
        self._make_folder()
        costs = self._costs()
        tried = {each.spec: each for each in self.field.tried if each.spec in costs}
        plan = plan_of(
            costs,
            [spec for spec, each in tried.items() if each.always],
            [spec for spec, each in tried.items() if each.is_alone],
            BASELINE,
            seconds=self.asked.left,
            at_once=self.packing().most,
            rounds=self.asked.rounds,
            searches=not {"lr", LR} & self.asked.values.keys(),
        )
        self._write(plan)
        return plan

    def _write(self, plan: Plan) -> None:
        self.asked.root.mkdir(parents=True, exist_ok=True)
        written = {"asked": self.asked.identity(), **dataclasses.asdict(plan)}
        storage.write(self.asked.root / PLAN, (json.dumps(written, indent=1) + "\n").encode())

    def _costs(self) -> dict[str, Cost]:
        """What a run of each costs, from the first rounds of one. Those that train every site in every round would take
        too long to try out: they cost what the baseline does, for more sites."""
        probed = [each for each in self.field.tried if not each.is_alone]
        root = self.asked.root / PROBE
        cells = [planned([each.spec], self._values(each, _PROBED), 1, root, self.data).cells[0] for each in probed]
        began = time.monotonic()
        self._run("what a round costs", cells, min(self.asked.until, began + _PROBING * max(0.0, self.asked.left)))
        walls = (time.monotonic() - began) * min(self.packing().most, len(cells)) / len(cells)
        failed = {cell.resolved.spec for cell in cells if (ending := self.endings.get(cell.folder)) and ending.error}
        seconds = {cell.resolved.spec: _seconds(cell.folder) for cell in cells if cell.resolved.spec not in failed}
        base = seconds.get(BASELINE, [])
        if not base:
            self._refuse_nothing()
        start = max(0.0, walls - statistics.fmean(sum(each) for each in seconds.values()))
        times = self.field.look.sites / self.field.look.cohort
        alone = {each.spec: [times * one for one in base] for each in self.field.tried if each.is_alone}
        found = {spec: each or [_UNKNOWN * one for one in base] for spec, each in {**seconds, **alone}.items()}
        order = [each.spec for each in self.field.tried if each.spec in found]
        return {spec: Cost(start, found[spec][0], found[spec][-1]) for spec in order}

    def _rates(self, plan: Plan) -> dict[str, float]:
        """The learning rate of each method: its own, or the best of a few on the validation rows of one seed."""
        tried = [one for one in self.field.tried if one.spec in plan.rounds]
        own = {each.spec: each.lr for each in tried}
        if plan.settings == 1:
            return own
        trials = {
            each.spec: grid(
                each.spec,
                self._values(each, plan.rounds[each.spec]),
                [Axis(LR, tuple(f"{rate * each.lr:.3g}" for rate in RATES[: plan.settings]))],
                1,
                0,
                self.asked.root / SEARCH,
                self.data,
            )
            for each in tried
        }
        # The same setting of all methods, then the next: who is stopped has searched as much for one as for another.
        rounds = [cell for each in zip(*trials.values(), strict=True) for trial in each for cell in trial.runs.cells]
        self._run("settings", rounds)
        for spec, theirs in trials.items():
            found = {
                float(trial.values[LR]): score(result, "validation", self.own)
                for trial in theirs
                if (result := self._result(trial.runs.cells[0])) is not None
            }
            known = [(value, rate) for rate, value in found.items() if value is not None and math.isfinite(value)]
            if known:
                best = metric_of(self.field.first.experiment.metric).place_of_best([value for value, _ in known])
                own[spec] = known[best][1]
        return own

    def _judged_cells(self, plan: Plan, rates: Mapping[str, float]) -> dict[int, list[Cell]]:
        """By seed. Seeds are others than that of the search, whose choice would flatter its own."""
        first = self.field.first.experiment.seed + (1 if plan.settings > 1 else 0)
        found: dict[int, list[Cell]] = {}
        for each in [one for one in self.field.tried if one.spec in plan.rounds]:
            values = {**self._values(each, plan.rounds[each.spec]), LR: rates[each.spec], "experiment.seed": first}
            cells = planned([each.spec], values, self.asked.seeds, self.asked.root / RUNS, self.data).cells
            for cell in cells:
                found.setdefault(cell.resolved.experiment.seed, []).append(cell)
        return found

    def _run_seeds(self, plan: Plan, cells: Mapping[int, list[Cell]]) -> None:
        """Seed by seed of all methods, as long as another is likely to be finished in time."""
        waiting = list(cells)
        took: float | None = None
        while waiting and self.asked.left > 0:
            if took is not None and MARGIN * took > self.asked.left:
                break
            fit = 1 if took is None else max(1, min(len(waiting), int(self.asked.left / (MARGIN * took))))
            now, waiting = waiting[:fit], waiting[fit:]
            todo = [cell for seed in now for cell in cells[seed]]
            fresh = [cell for cell in todo if self._result(cell) is None]
            began = time.monotonic()
            self._run(f"comparison, {len(plan.rounds)} methods", todo)
            if fresh:
                took = (time.monotonic() - began) * len(cells[now[0]]) / len(fresh)

    def _baked(self, plan: Plan, rates: Mapping[str, float], cells: Mapping[int, list[Cell]]) -> Baked:
        results, failed, unfinished = self._sorted(cells)
        if BASELINE not in results:
            self._refuse_nothing()
        return Baked(plan, rates, results, failed, unfinished, 0.0)

    def _sorted(
        self, cells: Mapping[int, list[Cell]]
    ) -> tuple[dict[str, dict[int, Result]], dict[str, str], tuple[str, ...]]:
        """Finished runs by method and seed, methods of which one failed, and runs that were stopped."""
        results: dict[str, dict[int, Result]] = {}
        failed: dict[str, str] = {}
        unfinished = []
        for cell in (cell for theirs in cells.values() for cell in theirs):
            ending, spec = self.endings.get(cell.folder), cell.resolved.spec
            if ending is not None and ending.error:
                failed.setdefault(spec, ending.error)
            elif ending is not None and ending.result is not None:
                results.setdefault(spec, {})[cell.resolved.experiment.seed] = ending.result
            elif cell.folder.exists():
                unfinished.append(cell.name)
        return results, failed, tuple(unfinished)

    def _make_folder(self) -> None:
        """Before anything is measured: more time would not help where nothing can be written."""
        try:
            (self.asked.root / PROBE).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = error.strerror or error
            raise RunError(f"cannot create '{self.asked.root / PROBE}': {why}; choose another --out") from error

    def _refuse_nothing(self) -> None:
        errors = [each.error for each in self.endings.values() if each.error and each.cell.resolved.spec == BASELINE]
        if errors:
            raise RunError(f"nothing can be said without '{BASELINE}': {errors[0]}")
        raise RunError(
            f"too little was finished in {self.asked.minutes:g} minutes for anything to be said: expected more "
            "--minutes, fewer --rounds or a smaller --network; the same command goes on"
        )

    @cached_property
    def _own_data(self) -> str | None:
        """The digest of the user's own object, where the data are no file."""
        own = self.data.own.data
        return None if own is None else content_of(own)

    def _run(self, title: str, cells: Sequence[Cell], until: float | None = None) -> None:
        # Results of other data, or of another version of a method's file, would pass for those that were asked for.
        refuse_other_runs(((cell.folder, cell.resolved) for cell in cells), self._own_data)
        limit = self.asked.until if until is None else until
        with self.watch(title, cells) as report:
            ended = run_cells(cells, self.packing(), report, self.explain, limit, self.data)
        self.endings |= {update.cell.folder: update for update in ended}

    def _result(self, cell: Cell) -> Result | None:
        ending = self.endings.get(cell.folder)
        return ending.result if ending else None

    def _values(self, each: Tried, rounds: int) -> dict[str, Any]:
        """Who exchanges nothing trains every site in every round; a site alone waits for nobody."""
        values = {**values_for(each.spec, self.asked.values), "experiment.rounds": rounds,
                  "experiment.validation": self.asked.validation}  # fmt: skip
        if self.own:
            values["experiment.evaluate_clients"] = 0
        if each.is_alone:
            values["experiment.cohort"] = self.field.look.sites
            values["experiment.evaluate_every"] = -(-rounds // 9)
        return values


def _seconds(folder: Path) -> list[float]:
    """Of the rounds that are finished."""
    return [float(record["seconds"]) for record in RunFolder(folder).metrics()] if folder.exists() else []
