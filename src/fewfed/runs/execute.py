"""From a job to a finished run folder, and on from where a run was stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewfed.data.readers.folders import cache_folder
from fewfed.engine import asking
from fewfed.engine.client_store import ClientStore
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.events import Event, Mended
from fewfed.engine.holdings import Holdings
from fewfed.engine.homes import Homes, SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.loop import Observer, RoundView, run_rounds
from fewfed.engine.provenance import Provenance
from fewfed.engine.records import PhaseRecord
from fewfed.privacy.leak import MeasureLeak
from fewfed.privacy.recorder import Recorder
from fewfed.runs.budget import Bill, StopAtEnd, refuse_unmeasured
from fewfed.runs.executors import Surroundings, executor_for
from fewfed.runs.final_scores import final_scores
from fewfed.runs.folder import CONFIG, RunFolder, held
from fewfed.runs.identity import refuse_other_inputs, refuse_other_run, signature
from fewfed.runs.machine import machine
from fewfed.runs.prepare import Prepared
from fewfed.runs.remaking import remakeable
from fewfed.runs.remembered import FOLDER, ChoiceFolder, RememberedChoices
from fewfed.runs.results import Result, summarise
from fewfed.runs.user_code import remember_named
from fewfed.tracking.observer import Track, noted
from fewfed.tree import Tree


def execute(
    prepared: Prepared,
    path: Path,
    observers: Sequence[Observer] = (),
    *,
    shares_machine: bool = False,
    comparison: Path | None = None,
    track: Sequence[str] = (),
) -> Result:
    """Run a prepared experiment into a folder, or continue the unfinished run of the same configuration there.

    `shares_machine`: other runs use the other cores, so that the clients run one after another in this process.
    `comparison`: the folder of the comparison this run belongs to, all of whose runs are computed in the same way.
    `track`: programs that are told of its rounds.
    """
    if not (path / CONFIG).exists():  # Where there is a run, its inputs were measured when it began.
        refuse_unmeasured(prepared.job, prepared.scaling)
    with held(path):  # Before looking: another process may be about to begin the same run.
        if (path / CONFIG).exists():
            refuse_other_run(path, prepared.resolved, prepared.inputs)
            folder, _ = RunFolder.open(path)
        else:
            label = prepared.job.method.label
            config = {**prepared.resolved.as_json(), "label": label, "inputs": prepared.inputs}
            folder = RunFolder.create(path, config, prepared.manifest, prepared.blueprint.as_json())
        remember_named(prepared.resolved)
        around = Surroundings(shares_machine, comparison is not None)
        return _run_to_end(prepared, folder, observers, around, comparison, track)


def continued(
    prepared: Prepared, path: Path, observers: Sequence[Observer], track: Sequence[str] | None = None
) -> Result:
    """Run to the end from the folder's last checkpoint. `track`: None is the trackers that the run had."""
    with held(path):
        folder, config = RunFolder.open(path)
        refuse_other_inputs(prepared.inputs, folder, config)
        names = tuple(noted(folder.place)) if track is None else track
        return _run_to_end(prepared, folder, observers, Surroundings(), None, names)


def _run_to_end(
    prepared: Prepared,
    folder: RunFolder,
    observers: Sequence[Observer],
    around: Surroundings,
    comparison: Path | None,
    track: Sequence[str],
) -> Result:
    tracking = Track(folder.place, track)
    result: Result | None = None
    try:
        with remakeable(prepared, folder.place) as job:
            result = _run_job(prepared, job, folder, observers, around, comparison, tracking)
    finally:
        tracking.end(None if result is None else result.as_json())
    return result


def _run_job(
    prepared: Prepared,
    job: Job,
    folder: RunFolder,
    observers: Sequence[Observer],
    around: Surroundings,
    comparison: Path | None,
    tracking: Track,
) -> Result:
    experiment = prepared.resolved.experiment
    homes = SimulatedHomes(job, ClientStore(folder.clients))
    last, before, mended = folder.restore(homes.check, experiment.rounds)
    homes.restore(last.states, before.states)
    choices = remembered_choices(prepared, folder, comparison)
    executor = executor_for(prepared.resolved, job, homes, prepared.cohort, around, choices)
    evaluate = Evaluate(experiment.evaluate_every, experiment.evaluate_clients, experiment.metric)
    record = KeepRounds(folder, experiment.checkpoint_seconds)
    recorder = None if prepared.recording is None else Recorder(folder.place, prepared.recording, last.done)
    beside = [] if recorder is None else [recorder]
    holdings = Holdings.from_json(last.held)
    leak = [MeasureLeak()] if experiment.leak else []
    told: list[Event] = [Mended(what) for what in mended]
    bill = Bill(prepared.ledger, job.plan.protection) if prepared.ledger else None
    billed, stopped = ([bill], [StopAtEnd(bill, folder.path)]) if bill else ([], [])
    try:
        if bill:
            bill.begin(homes, folder.metrics())
            bill.refuse_end(last.done, experiment.rounds, folder.path)
        tracking.begin(folder.config(), "" if comparison is None else comparison.absolute().name, folder.metrics())
        final = run_rounds(
            job,
            executor,
            [
                AddExchange(prepared.scaling.exchange),
                _Tell(told),
                evaluate,
                *leak,
                *billed,
                *observers,
                *beside,
                record,
                tracking,
                *stopped,
            ],
            rounds=experiment.rounds,
            cohort=prepared.cohort,
            holdings=holdings,
            server=last.server,
            start=last.done,
            provenance=Provenance.from_json(last.rows) if last.rows else None,
            witness=recorder,
        )
        scores = final_scores(job, executor, final, experiment.evaluate_clients)
    except BaseException:  # Ctrl-C above all: the rounds that are finished need not be computed again.
        with contextlib.suppress(Exception):  # Whatever this runs into, the checkpoint before is still there.
            record.keep_finished_rounds()
        raise
    finally:
        executor.close()
        homes.close()
    summary = summarise(folder.metrics(), experiment.metric)
    result = Result(
        method=prepared.resolved.chosen.method.label,
        preset=prepared.resolved.chosen.preset,
        data=experiment.data,
        split=experiment.split,
        clients=len(prepared.split),
        rounds=experiment.rounds,
        seed=experiment.seed,
        folder=str(folder.path),
        note=prepared.note,
        metric=experiment.metric,
        privacy=bill.summary(experiment.rounds) if bill else None,
        **summary,
    )
    personal = job.method.personal_model
    folder.finish(final if personal else asking.predictor(job, final, {}), scores, result.as_json())
    return result


def remembered_choices(prepared: Prepared, folder: RunFolder, comparison: Path | None) -> RememberedChoices:
    """What timing chose for this run, for its comparison, or for runs like it on this machine.

    All runs of a comparison share choices, whatever their methods; other runs share them if they are alike.
    """
    job, experiment = prepared.job, prepared.resolved.experiment
    about: dict[str, Any] = {
        "machine": machine(),
        "executor": [experiment.executor, experiment.exact],
        "options": {name: dict(given) for name, given in prepared.resolved.executors.items()},
        "network": signature(job.net),
        "shape": list(job.federation.shape),
        "batch": job.training.batch,
    }
    shared = []
    with contextlib.suppress(RuntimeError):  # A user without a home.
        shared.append(ChoiceFolder(cache_folder() / FOLDER))
    if comparison is not None:
        shared.insert(0, ChoiceFolder(comparison / f".{FOLDER}"))
    else:
        about["method"] = [prepared.resolved.spec, {k: str(v) for k, v in prepared.resolved.values.items()}]
        about["training"] = dataclasses.asdict(job.training)
        about["length"] = [experiment.rounds, prepared.cohort]
    return RememberedChoices(folder.choices, about, shared)


@dataclass(frozen=True)
class AddExchange:
    """The observer that adds what was exchanged before the first round to that round's record."""

    phases: Mapping[str, PhaseRecord]

    def after_round(self, view: RoundView) -> None:
        if view.clock.first and self.phases:
            view.record = dataclasses.replace(view.record, phases={**self.phases, **view.record.phases})


@dataclass
class _Tell:
    """The observer that adds what happened before the first round to that round's events."""

    events: list[Event]

    def after_round(self, view: RoundView) -> None:
        if self.events:
            view.record = dataclasses.replace(view.record, events=(*self.events, *view.record.events))
            self.events = []


@dataclass
class KeepRounds:
    """The observer that writes metrics and, now and then, a checkpoint. The last round always gets one."""

    folder: RunFolder
    every: float
    _began: float = field(default_factory=time.perf_counter)
    _saved: float = field(default_factory=time.monotonic)
    _finished: _Finished | None = None
    """The last round that is finished and written down, unless there is a checkpoint of it."""

    def after_round(self, view: RoundView) -> None:
        now = time.perf_counter()
        view.record.add({"seconds": now - self._began})
        self._began = now
        # An interrupt may come at any moment: until the assignment, the round before can be gone back to.
        self.folder.append(view.record.as_json())
        rows = view.provenance.as_json() if view.provenance else {}
        finished = _Finished(view.clock.round + 1, view.server, view.executor.homes, view.holdings, rows)
        self._finished = finished
        finished.mark()
        if view.clock.last or time.monotonic() - self._saved >= self.every:
            self._checkpoint(finished)
            finished.homes.settle()
            self._saved = time.monotonic()

    def keep_finished_rounds(self) -> None:
        """The run ends before its last round: write a checkpoint of the rounds that are finished."""
        if self._finished is not None:
            self._finished.go_back()
            self._checkpoint(self._finished)

    def _checkpoint(self, finished: _Finished) -> None:
        homes, held = finished.homes.commit(), finished.holdings.as_json()
        self.folder.checkpoint(finished.server, finished.rounds, homes, held, finished.rows)
        self._finished = None


@dataclass
class _Finished:
    """All that a checkpoint needs of a finished round."""

    rounds: int
    server: Tree
    homes: Homes
    holdings: Holdings
    rows: Mapping[str, Any] = field(default_factory=dict)
    """Whose the rows on the server are."""
    marked: bool = False

    def mark(self) -> None:
        """Let `go_back` lead here."""
        self.homes.finish_round()
        self.holdings.finish_round()
        self.marked = True

    def go_back(self) -> None:
        """Undo what happened in the next round, if that can have begun."""
        if self.marked:
            self.homes.undo_round()
            self.holdings.undo_round()
