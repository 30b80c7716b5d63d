"""Running an experiment: from a configuration to a finished run folder, and on from where it was stopped."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fewfed import networks
from fewfed.data.examples import Dataset
from fewfed.data.federation import SplitFederation
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import load
from fewfed.data.splits import DirichletOptions, Split, make_split, parse_rule, released_options
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.job import Executor, Job
from fewfed.engine.loop import Observer, RoundView, run_rounds
from fewfed.engine.sequential import Sequential
from fewfed.engine.store import ClientStore
from fewfed.engine.workers import Workers
from fewfed.errors import ConfigError, RunError
from fewfed.experiment import Experiment, Resolved, validated
from fewfed.folder import CONFIG, RunFolder
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.plan import Draws, Plan
from fewfed.results import Result, summarise
from fewfed.settings import make
from fewfed.task import Classification
from fewfed.training import Training

DEFAULT_OUT = Path("runs")


@dataclass(frozen=True)
class Prepared:
    """An experiment whose data are read, split and checked: nothing can be wrong with the settings any more."""

    resolved: Resolved
    job: Job
    split: Split
    manifest: dict[str, Any]
    cohort: int
    note: str


def run(
    method: str,
    experiment: Experiment | None = None,
    training: Training | None = None,
    *,
    values: dict[str, Any] | None = None,
    options: DataOptions | None = None,
    data: Dataset | None = None,
    network: nn.Module | Network | None = None,
    out: Path | str | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run one method. `values` are its hyper-parameters; `data` and `network` may be your own objects."""
    chosen = choose(method, values)
    experiment = experiment or Experiment()
    training = training or make(Training, chosen.training, "training")
    validated(experiment, training)
    resolved = Resolved(method, values or {}, experiment, training, options or DataOptions())
    prepared = prepare(resolved, data=data, network=network)
    path = Path(out) if out else default_folder(resolved)
    refuse_existing(path)
    return execute(prepared, path, observers)


def resume(
    folder: Path | str,
    *,
    data: Dataset | None = None,
    network: nn.Module | Network | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Continue a run that was stopped; a finished one is returned as it is. Own data and networks are given again."""
    opened, config = RunFolder.open(Path(folder))
    finished = opened.result()
    if finished is not None:
        return Result.from_json(finished)
    prepared = prepare(Resolved.from_json(config), data=data, network=network)
    return _continue(prepared, opened, observers, alone=True)


def prepare(resolved: Resolved, *, data: Dataset | None = None, network: nn.Module | Network | None = None) -> Prepared:
    """Read, split, build and check everything before anything is written."""
    experiment, training = resolved.experiment, resolved.training
    parse_rule(experiment.split)
    dataset = load(experiment.data, options=resolved.options, seed=experiment.seed) if data is None else data
    split = split_of(dataset, experiment)
    federation = SplitFederation(
        dataset, split, noise=experiment.noise, noise_kind=experiment.noise_kind, seed=experiment.seed
    )
    plan = Plan(experiment.seed, training.batch, training.batch_rule, training.sampling)
    method = resolved.chosen.method
    net = _network(experiment, dataset, network)
    job = Job(method, net, Classification(dataset.classes), federation, training, plan)
    method.check(job.setup)
    cohort = experiment.cohort_size(len(split))
    manifest = split.manifest(dataset.train.y.numpy(), dataset.classes)
    return Prepared(resolved, job, split, manifest, cohort, dataset.note)


def split_of(dataset: Dataset, experiment: Experiment) -> Split:
    """The clients of an experiment."""
    rule = parse_rule(experiment.split)
    legacy = experiment.legacy_seed if experiment.legacy_seed >= 0 else None
    options: DirichletOptions | None = None
    if legacy is not None and rule.name == "dir":
        options = released_options(dataset.name, experiment.clients, float(rule.values[0]))
    return make_split(
        experiment.split,
        dataset.train.y.numpy(),
        dataset.classes,
        experiment.clients,
        experiment.seed,
        groups=dataset.groups,
        volume=experiment.volume,
        min_size=experiment.min_size if experiment.min_size >= 0 else None,
        legacy_seed=legacy,
        options=options,
    )


def execute(prepared: Prepared, path: Path, observers: Sequence[Observer] = (), *, alone: bool = True) -> Result:
    """Run a prepared experiment into a folder, or continue the unfinished run of the same configuration there.

    `alone` is False where other runs use the other cores: the clients then run one after another in this process.
    """
    if (path / CONFIG).exists():
        folder, config = RunFolder.open(path)
        if Resolved.from_json(config) != prepared.resolved:
            raise RunError(f"'{path}' holds a run with another configuration: choose another --out or remove it")
    else:
        folder = RunFolder.create(path, prepared.resolved.as_json(), prepared.manifest)
    return _continue(prepared, folder, observers, alone)


def refuse_existing(path: Path) -> None:
    """A new run does not go into a folder that holds one."""
    if (path / CONFIG).exists():
        raise RunError(f"'{path}' already holds a run: continue it with 'fewfed resume {path}' or choose another --out")


def default_folder(resolved: Resolved, root: Path = DEFAULT_OUT) -> Path:
    """A folder named after the run; a number is added where one of that name exists."""
    experiment = resolved.experiment
    parts = (resolved.spec, Path(experiment.data).stem, experiment.split, f"seed{experiment.seed}")
    name = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)
    path = root / name
    number = 2
    while path.exists():
        path = root / f"{name}-{number}"
        number += 1
    return path


def _continue(prepared: Prepared, folder: RunFolder, observers: Sequence[Observer], alone: bool) -> Result:
    experiment, job = prepared.resolved.experiment, prepared.job
    server, done, states = folder.restore()
    store = ClientStore(folder.clients)
    store.restore(states)
    executor = _executor(experiment, job, prepared.cohort) if alone else Sequential(job)
    evaluate = Evaluate(experiment.evaluate_every, experiment.evaluate_clients)
    record = _Record(folder, experiment.checkpoint_seconds)
    try:
        final = run_rounds(
            job,
            executor,
            [evaluate, record, *observers],
            rounds=experiment.rounds,
            cohort=prepared.cohort,
            store=store,
            server=server,
            start=done,
        )
    finally:
        executor.close()
        store.close()
    summary = summarise(folder.metrics())
    result = Result(
        method=prepared.resolved.spec.split(":")[0],
        preset=prepared.resolved.chosen.preset,
        data=experiment.data,
        split=experiment.split,
        clients=len(prepared.split),
        rounds=experiment.rounds,
        seed=experiment.seed,
        folder=str(folder.path),
        note=prepared.note,
        **summary,
    )
    personal = job.method.personal_model
    folder.finish(final if personal else job.method.predictor(final, {}), result.as_json())
    return result


@dataclass
class _Record:
    """The observer that writes metrics and, now and then, a checkpoint. The last round always gets one."""

    folder: RunFolder
    every: float
    _began: float = field(default_factory=time.perf_counter)
    _saved: float = field(default_factory=time.monotonic)

    def after_round(self, view: RoundView) -> None:
        now = time.perf_counter()
        view.metrics["seconds"] = now - self._began
        self._began = now
        self.folder.append(view.metrics)
        if view.clock.last or time.monotonic() - self._saved >= self.every:
            self.folder.checkpoint(view.server, view.clock.round + 1, view.store.commit())
            view.store.forget_obsolete()
            self._saved = time.monotonic()


def _network(experiment: Experiment, dataset: Dataset, own: nn.Module | Network | None) -> Network:
    if own is not None:
        return own if isinstance(own, Network) else Network.of(own)
    name = experiment.network
    if name == "auto":
        name = networks.default_for(dataset.name, dataset.shape, dataset.classes)
    weights = int(Draws(experiment.seed, "weights").integers(2**31, 1))
    return networks.build(name, dataset.shape, dataset.classes, weights)


def _executor(experiment: Experiment, job: Job, cohort: int) -> Executor:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    name = experiment.executor
    if name == "auto":
        name = "workers" if cores > 1 and cohort > 1 and hasattr(os, "fork") else "sequential"
    if name == "workers":
        return Workers(job, experiment.processes)
    if experiment.processes:
        raise ConfigError(f"processes = {experiment.processes} needs executor 'workers', not '{name}'")
    return Sequential(job)
