"""Running an experiment: from a configuration to a finished run folder, and on from where it was stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewfed import networks, tree
from fewfed.data.examples import Dataset, checked
from fewfed.data.federation import SplitFederation
from fewfed.data.leave_out import leave_out
from fewfed.data.readers.folders import cache_folder
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import load
from fewfed.data.splits import BY_CLASS, DirichletOptions, Split, make_split, parse_rule, released_options
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.holdings import Holdings
from fewfed.engine.job import Job
from fewfed.engine.loop import Observer, RoundView, run_rounds
from fewfed.engine.store import ClientStore
from fewfed.errors import ConfigError, RunError
from fewfed.executors import EXECUTOR_FIELDS, Surroundings, executor_for, refuse_unused
from fewfed.experiment import Experiment, Resolved, layered
from fewfed.folder import CONFIG, RunFolder, machine, refuse_existing
from fewfed.network import Network
from fewfed.phase import Clock
from fewfed.plan import Draws, Plan
from fewfed.remembered import FOLDER, ChoiceFolder, RememberedChoices
from fewfed.results import Result, summarise
from fewfed.segmentation import Segmentation
from fewfed.task import Classification, Task
from fewfed.training import Training

DEFAULT_OUT = Path("runs")


@dataclass(frozen=True)
class Prepared:
    """An experiment whose data are read, split and checked: nothing can be wrong with the settings any more."""

    resolved: Resolved
    job: Job
    split: Split
    manifest: dict[str, Any]
    inputs: dict[str, Any]
    """What identifies the data and the first weights: a resumed run must be given the same."""
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
    """Run one method. `values` are its hyper-parameters; `data` and `network` may be your own objects.

    Fields that `training` does not name are the method's own (`Training(epochs=2)` leaves SCAFFOLD its plain SGD).
    """
    experiment = _describing(experiment or Experiment(), data, network)
    stated = training.stated() if training else {}
    resolved = layered(method, values or {}, experiment, stated, options or DataOptions())
    prepared = prepare(resolved, data=None if data is None else checked(data), network=network)
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
    own = None if data is None else checked(data)
    prepared = prepare(Resolved.from_json(config), data=own, network=network)
    _refuse_other_inputs(prepared, opened, config)
    return _continue(prepared, opened, observers)


def prepare(resolved: Resolved, *, data: Dataset | None = None, network: nn.Module | Network | None = None) -> Prepared:
    """Read, split, build and check everything before anything is written."""
    experiment, training = resolved.experiment, resolved.training
    parse_rule(experiment.split)
    loaded = load(experiment.data, options=resolved.options, seed=experiment.seed) if data is None else data
    dataset = training_part(loaded, experiment)
    split = split_of(dataset, experiment)
    federation = SplitFederation(
        dataset, split, noise=experiment.noise, noise_kind=experiment.noise_kind, seed=experiment.seed
    )
    plan = Plan(experiment.seed, training.batch, training.batch_rule, training.sampling)
    method = resolved.chosen.method
    net = _network(experiment, dataset, network)
    job = Job(method, net, _task(dataset), federation, training, plan)
    job.check()
    for number in (0, experiment.rounds - 1):  # A method may refuse the epochs where it lays out a round.
        method.phases(Clock(number, experiment.rounds, training.epochs))
    cohort = experiment.cohort_size(len(split))
    _refuse_unfit_network(net, dataset)
    refuse_unused(experiment)
    manifest = split.manifest(dataset.split_labels, len(dataset.split_names))
    return Prepared(resolved, job, split, manifest, _identity(dataset, net), cohort, dataset.note)


def training_part(dataset: Dataset, experiment: Experiment) -> Dataset:
    """The data without the client an experiment leaves out, which becomes its test part."""
    if not experiment.leave_out:
        return dataset
    return leave_out(dataset, parse_rule(experiment.split).name, experiment.leave_out)


def split_of(dataset: Dataset, experiment: Experiment) -> Split:
    """The clients of an experiment."""
    rule = parse_rule(experiment.split)
    if dataset.task == "segmentation" and rule.name in BY_CLASS:
        raise ConfigError(
            f"split '{experiment.split}' needs class labels but data '{dataset.name}' has masks: expected domain, "
            "subject, client, iid or size:BETA"
        )
    legacy = experiment.legacy_seed if experiment.legacy_seed >= 0 else None
    options: DirichletOptions | None = None
    if legacy is not None and rule.name == "dir":
        options = released_options(dataset.name, experiment.clients, float(rule.values[0]))
    return make_split(
        experiment.split,
        dataset.split_labels,
        len(dataset.split_names),
        experiment.clients,
        experiment.seed,
        groups=dataset.groups,
        volume=experiment.volume,
        min_size=experiment.min_size if experiment.min_size >= 0 else None,
        legacy_seed=legacy,
        options=options,
    )


def execute(
    prepared: Prepared,
    path: Path,
    observers: Sequence[Observer] = (),
    *,
    alone: bool = True,
    comparison: Path | None = None,
) -> Result:
    """Run a prepared experiment into a folder, or continue the unfinished run of the same configuration there.

    `alone` is False where other runs use the other cores: the clients then run one after another in this process.
    `comparison`: the folder of the comparison this run belongs to, all of whose runs are computed in the same way.
    """
    if (path / CONFIG).exists():
        folder, config = RunFolder.open(path)
        if Resolved.from_json(config) != prepared.resolved:
            raise RunError(f"'{path}' holds a run with another configuration: choose another --out or remove it")
        _refuse_other_inputs(prepared, folder, config)
    else:
        config = {**prepared.resolved.as_json(), "inputs": prepared.inputs}
        folder = RunFolder.create(path, config, prepared.manifest)
    return _continue(prepared, folder, observers, alone, comparison)


def default_folder(resolved: Resolved, root: Path = DEFAULT_OUT) -> Path:
    """A folder named after the run; a number is added where one of that name exists."""
    experiment = resolved.experiment
    unseen = (f"without-{experiment.leave_out}",) if experiment.leave_out else ()
    parts = (resolved.spec, Path(experiment.data).stem, experiment.split, *unseen, f"seed{experiment.seed}")
    name = "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)
    path = root / name
    number = 2
    while path.exists():
        path = root / f"{name}-{number}"
        number += 1
    return path


def _continue(
    prepared: Prepared,
    folder: RunFolder,
    observers: Sequence[Observer],
    alone: bool = True,
    comparison: Path | None = None,
) -> Result:
    with folder.held():
        return _run_to_end(prepared, folder, observers, alone, comparison)


def _run_to_end(
    prepared: Prepared, folder: RunFolder, observers: Sequence[Observer], alone: bool, comparison: Path | None
) -> Result:
    experiment, job = prepared.resolved.experiment, prepared.job
    last = folder.restore()
    store = ClientStore(folder.clients)
    store.restore(last.states)
    choices = remembered_choices(prepared, folder, comparison)
    around = Surroundings(alone, compared=comparison is not None)
    executor = executor_for(experiment, job, prepared.cohort, around, choices)
    evaluate = Evaluate(experiment.evaluate_every, experiment.evaluate_clients)
    record = _Record(folder, experiment.checkpoint_seconds)
    try:
        final = run_rounds(
            job,
            executor,
            [evaluate, *observers, record],
            rounds=experiment.rounds,
            cohort=prepared.cohort,
            store=store,
            holdings=Holdings.from_json(last.held),
            server=last.server,
            start=last.done,
        )
    finally:
        executor.close()
        store.close()
    summary = summarise(folder.metrics())
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
        **summary,
    )
    personal = job.method.personal_model
    folder.finish(final if personal else job.method.predictor(final, {}), result.as_json())
    return result


def remembered_choices(prepared: Prepared, folder: RunFolder, comparison: Path | None) -> RememberedChoices:
    """What timing chose for this run, for its comparison, or for runs like it on this machine.

    All runs of a comparison share choices, whatever their methods; other runs share them if they are alike.
    """
    job, experiment = prepared.job, prepared.resolved.experiment
    about: dict[str, Any] = {
        "machine": machine(),
        "executor": {name: getattr(experiment, name) for name in EXECUTOR_FIELDS},
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
            done = view.clock.round + 1
            self.folder.checkpoint(view.server, done, view.store.commit(), view.holdings.as_json())
            view.store.forget_obsolete()
            self._saved = time.monotonic()


def _task(dataset: Dataset) -> Task:
    return Segmentation(dataset.classes) if dataset.task == "segmentation" else Classification(dataset.classes)


def _network(experiment: Experiment, dataset: Dataset, own: nn.Module | Network | None) -> Network:
    if own is not None:
        return own if isinstance(own, Network) else Network.of(own)
    name = experiment.network
    if name == "auto" and dataset.task == "segmentation":
        name = "unet"
    elif name == "auto":
        name = networks.default_for(dataset.name, dataset.shape, dataset.classes)
    weights = int(Draws(experiment.seed, "weights").integers(2**31, 1))
    return networks.build(name, dataset.shape, dataset.classes, weights)


def _refuse_unfit_network(net: Network, dataset: Dataset) -> None:
    try:
        with torch.no_grad():
            scores = net.apply(net.model(), dataset.test.x[:1], train=False)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"network '{net.name}' cannot take inputs of shape {dataset.shape} and type {dataset.test.x.dtype}: {error}"
        ) from error
    found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
    masks = tuple(dataset.test.y.shape[1:])
    if found != (1, dataset.classes, *masks):
        each = "pixel and class" if masks else "class"
        raise ConfigError(
            f"network '{net.name}' answers one input with {found}: expected {(1, dataset.classes, *masks)}, a score a "
            f"{each}"
        )


def _describing(experiment: Experiment, data: Dataset | None, network: nn.Module | Network | None) -> Experiment:
    """The experiment with the names of the user's own objects in place of those it would have looked up."""
    if data is not None:
        experiment = dataclasses.replace(experiment, data=data.name)
    if network is not None:
        experiment = dataclasses.replace(experiment, network=Network.of(network).name)  # type: ignore[arg-type]
    return experiment


def _identity(dataset: Dataset, net: Network) -> dict[str, Any]:
    weights = hashlib.sha256()
    for name, leaf in tree.leaves(net.model()):
        weights.update(name.encode() + leaf.contiguous().numpy().tobytes())
    labels = torch.cat([dataset.train.y, dataset.test.y]).numpy().tobytes()
    return {
        "shape": list(dataset.shape),
        "labels": hashlib.sha256(labels).hexdigest(),
        "weights": weights.hexdigest(),
    }


def signature(net: Network) -> str:
    """A digest of what a network computes, whatever its weights are."""
    parts = [f"{stage}: {net.module(stage)!r}" for stage in net.stages]
    leaves = [f"{path} {leaf.dtype} {tuple(leaf.shape)}" for path, leaf in tree.leaves(net.model())]
    return hashlib.sha256("\n".join([*parts, *leaves]).encode()).hexdigest()


def _refuse_other_inputs(prepared: Prepared, folder: RunFolder, config: dict[str, Any]) -> None:
    recorded = config.get("inputs")
    if recorded == prepared.inputs:
        return
    same_weights = isinstance(recorded, dict) and recorded.get("weights") == prepared.inputs["weights"]
    what = "other data" if same_weights else "another network or other data"
    raise RunError(f"'{folder.path}' was started with {what}: give it the same again, in Python as data= and network=")
