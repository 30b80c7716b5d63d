"""The doors of the package: run a method, go on with a run, compare methods, search settings, look at runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fewfed.data.examples import Dataset
from fewfed.data.readers.options import DataOptions
from fewfed.engine.executors.registry import plugin_of
from fewfed.engine.loop import Observer
from fewfed.errors import ConfigError, RunError
from fewfed.methods.registry import label_of
from fewfed.network import Network
from fewfed.runs import aside, given, tuning
from fewfed.runs.cells import LoadedData, failure_of
from fewfed.runs.comparison import DEFAULT_FOLDER, planned
from fewfed.runs.execute import continued, execute
from fewfed.runs.executors import packing_for
from fewfed.runs.experiment import Experiment, Resolved, layered
from fewfed.runs.folder import RunFolder, refuse_existing
from fewfed.runs.naming import DEFAULT_OUT, default_folder
from fewfed.runs.own import Own
from fewfed.runs.prepare import prepare
from fewfed.runs.results import Result
from fewfed.runs.user_code import refuse_unknown, remember_named
from fewfed.settings import shown
from fewfed.tracking.registry import checked
from fewfed.training import Training

if TYPE_CHECKING:
    from fewfed.privacy.statement import Statement
    from fewfed.report.comparison import Comparison
    from fewfed.report.overview import Overview
    from fewfed.report.page.write import Written
    from fewfed.report.tuned import Tuned

Named = Mapping[str, Any]
"""Settings by name, where a program need not make an object of them."""
Where = str | PathLike[str]


def run(
    method: Where,
    experiment: Experiment | Named | None = None,
    training: Training | Named | None = None,
    *,
    values: Named | None = None,
    options: DataOptions | Named | None = None,
    executor: Any = None,
    data: Dataset | Where | None = None,
    network: nn.Module | Network | Where | None = None,
    out: Where | None = None,
    observers: Sequence[Observer] = (),
    track: str | Sequence[str] = (),
    progress: bool | None = None,
) -> Result:
    """Run one method. `values` are its hyper-parameters; `data` and `network` may be your own objects.

    `network` may be any `nn.Module`, or what `Experiment(network=...)` takes: a name, or a file as in "net.py:build".

    Fields that `training` does not name are the method's own (`Training(epochs=2)` leaves SCAFFOLD its plain SGD).
    `executor` is a name, or an executor's options, such as `fewfed.engine.executors.cuda.options.Options(streams=4)`.
    `track`: "tensorboard", "mlflow", "wandb", or several of them are told of every round (docs/trackers.md).
    `progress` is shown on a terminal and in notebooks; True shows it wherever the program runs, False nowhere.
    """
    trackers = checked(track)
    spec, wanted, watching = given.method_of(method), given.wanted(progress), given.observers_of(observers)
    described, own = given.experiment_of(experiment, data, network)
    on, executors = _executor_of(executor)
    described = dataclasses.replace(described, executor=on) if on else described
    stated, chosen = given.training_of(training), given.options_of(options)
    resolved = layered(spec, given.values_of(values), described, stated, chosen, executors)
    prepared = prepare(resolved, data=own.data, network=own.network)
    path = given.folder_of(out, "out") if out else default_folder(prepared.resolved)
    refuse_existing(path)
    title, rounds = label_of(spec), resolved.experiment.rounds
    return _watched(title, rounds, wanted, lambda seen: execute(prepared, path, [*watching, *seen], track=trackers))


def explain(
    method: Where,
    experiment: Experiment | Named | None = None,
    training: Training | Named | None = None,
    *,
    values: Named | None = None,
    options: DataOptions | Named | None = None,
    data: Dataset | Where | None = None,
    network: nn.Module | Network | Where | None = None,
) -> Statement:
    """What leaves a site in a run of these settings, who sees it, for how long, and what is not sent. Nothing is run.

    Everything is as in `run`. `print` shows the statement in plain words; `as_json()` is for programs.
    """
    from fewfed.runs.explained import explained

    spec = given.method_of(method)
    described, own = given.experiment_of(experiment, data, network)
    resolved = layered(spec, given.values_of(values), described, given.training_of(training), given.options_of(options))
    return explained(prepare(resolved, data=own.data, network=own.network))


def resume(
    folder: Where,
    *,
    data: Dataset | None = None,
    network: nn.Module | Network | Where | None = None,
    method: Where = "",
    executor: str = "",
    epsilon: float | None = None,
    policy: Where = "",
    observers: Sequence[Observer] = (),
    track: str | Sequence[str] | None = None,
    progress: bool | None = None,
) -> Result:
    """Continue a run that was stopped; a finished one is returned as it is. Own data and networks are given again.

    `method`: the run's method, named again. Needed where it is a file that you have not run before, since a folder
    from somebody else must not decide which code runs here; or where that file lies elsewhere by now. The same goes for
    `network` where the run's network is a file.
    `executor`: another one than the run had, where this machine lacks that. `epsilon`: a larger privacy budget than the
    run had, which has spent it. `policy`: another file of what sites allow. `progress`: as in `run`.
    `track`: as in `run`; None goes on with the trackers that the run had.
    """
    trackers = None if track is None else checked(track)
    path, spec, watching = given.folder_of(folder, "folder"), given.method_of(method), given.observers_of(observers)
    own, wanted = given.own_of(data, network), given.wanted(progress)
    if not isinstance(executor, str):
        raise ConfigError(f"executor = {shown(executor)}: expected the name of another one", key="executor")
    opened, config = RunFolder.open(path)
    finished = opened.result()
    if finished is not None and opened.is_whole():  # What is lost is made again from the checkpoint.
        return Result.from_json(finished)
    if opened.is_of_sites:
        raise RunError(
            f"'{path}' holds a run between real sites, which have its rows: expected 'fewfed serve CONFIG --out {path} "
            "--resume'"
        )
    recorded = Resolved.from_json(config)
    name = os.fspath(network) if isinstance(network, (str, PathLike)) else ""
    recorded = recorded.named(spec) if spec else recorded
    recorded = recorded.with_network(name) if name else recorded
    recorded = recorded if epsilon is None else recorded.with_budget(epsilon)
    recorded = recorded.with_policy(os.fspath(policy)) if policy else recorded
    refuse_unknown(recorded, path, [kind for kind, said in (("method", spec), ("network", name)) if said])
    prepared = prepare(recorded.on(executor) if executor else recorded, data=own.data, network=own.network)
    remember_named(recorded)
    title, rounds = label_of(recorded.spec), recorded.experiment.rounds
    return _watched(title, rounds, wanted, lambda seen: continued(prepared, path, [*watching, *seen], trackers))


def compare(
    methods: Sequence[Where],
    experiment: Experiment | Named | None = None,
    training: Training | Named | None = None,
    *,
    seeds: int = 1,
    jobs: int = 0,
    values: Named | None = None,
    options: DataOptions | Named | None = None,
    executor: Any = None,
    data: Dataset | Where | None = None,
    network: nn.Module | Network | Where | None = None,
    out: Where | None = None,
    track: str | Sequence[str] = (),
    progress: bool | None = None,
) -> Comparison:
    """Run several methods over several seeds on the same splits and cohorts: `fewfed compare` for programs.

    `seeds`: so many for each method, from the experiment's on. `jobs`: runs at once; 0 = what the machine has room for.
    `values` are as `--set` takes them: `{"mu": 0.1}` goes to every method that has such a field, `{"fedprox.mu": 0.1}`
    to one. The first weights of a network of your own are the same for all seeds.

    Finished runs in the folder `out` (runs/compare) are kept and unfinished ones continued: the same call goes on where
    it was stopped. A run that fails costs no other and is told in `failed` of what is returned; where all fail, that is
    a `RunError`. `track`: as in `run`; every run is one of the tracker's, and all are of one group.
    """
    from fewfed.report.comparison import compared
    from fewfed.report.progress import cell_reporter, display

    trackers = checked(track)
    specs, wanted = given.methods_of(methods), given.wanted(progress)
    count, most = given.count_of(seeds, "seeds", 1), given.count_of(jobs, "jobs", 0)
    flat, own = _asked(experiment, training, values, options, executor, data, network)
    root = given.folder_of(out, "out") if out else DEFAULT_FOLDER
    runs = planned(specs, flat, count, root, LoadedData(own))
    _refuse_busy_gpu(flat["experiment.executor"])
    aside.refuse_spent_autograd()
    runs.refuse_unready()
    with display(f"{len(runs.cells)} runs", len(runs.cells) * runs.rounds, wanted) as seen:
        endings = runs.run(packing_for(most), cell_reporter(seen, runs.rounds), track=trackers)
    comparison, failure = compared(runs, endings), failure_of(endings, "runs")
    if failure is not None and not comparison.named:
        raise RunError(failure[0])
    return comparison


def tune(
    methods: Sequence[Where],
    over: Mapping[str, Sequence[Any]],
    experiment: Experiment | Named | None = None,
    training: Training | Named | None = None,
    *,
    seeds: int = 1,
    search_seeds: int = 1,
    trials: int = 0,
    validation: float = tuning.VALIDATION,
    by: str = "last10",
    jobs: int = 0,
    values: Named | None = None,
    options: DataOptions | Named | None = None,
    executor: Any = None,
    data: Dataset | Where | None = None,
    network: nn.Module | Network | Where | None = None,
    out: Where | None = None,
    progress: bool | None = None,
) -> Tuned:
    """Search settings for several methods with the same budget, then compare what was chosen: `fewfed tune`.

    `over`: what is searched, as in `{"lr": [1e-3, 1e-2], "fedprox.mu": [0.1, 1]}`; a method tries what concerns it, at
    most `trials` settings. Each is judged, over `search_seeds`, by the `by` (best, last, last10) on the part
    `validation` of every client's rows, which nobody trains on then. What is chosen is run with `seeds` on all rows,
    and only then is the test part looked at. The rest is as in `compare`; the folder is runs/tune.
    """
    from fewfed.report.comparison import compared
    from fewfed.report.progress import cell_reporter, display
    from fewfed.report.tuned import Tuned, write

    specs, wanted, count = given.methods_of(methods), given.wanted(progress), given.count_of(seeds, "seeds", 1)
    most = given.count_of(jobs, "jobs", 0)
    flat, own = _asked(experiment, training, values, options, executor, data, network)
    search = tuning.search(
        specs,
        flat,
        given.axes_of(over),
        seeds=given.count_of(search_seeds, "search_seeds", 1),
        most=given.count_of(trials, "trials", 0),
        validation=validation,
        by=tuning.by_of(by),
        root=given.folder_of(out, "out") if out else tuning.DEFAULT_FOLDER,
        data=LoadedData(own),
    )
    _refuse_busy_gpu(flat["experiment.executor"])
    aside.refuse_spent_autograd()
    search.refuse_unready()
    rounds = search.cells[0].resolved.experiment.rounds
    with display(f"{len(search.cells)} runs of the search", len(search.cells) * rounds, wanted) as seen:
        tried = search.judged(search.run(packing_for(most), cell_reporter(seen, rounds)))
    runs = search.final(tried, count)
    write(search, tried)
    with display(f"{len(runs.cells)} runs of what is chosen", len(runs.cells) * runs.rounds, wanted) as seen:
        endings = runs.run(packing_for(most), cell_reporter(seen, runs.rounds))
    comparison, failure = compared(runs, endings), failure_of(endings, "runs")
    if failure is not None and not comparison.named:
        raise RunError(failure[0])
    return Tuned(search, tuple(tried), comparison)


def show(*folders: Where) -> Overview:
    """Runs on the disk as one table, finished or not: run folders, or folders with runs below them."""
    from fewfed.report.overview import overview
    from fewfed.report.survey import survey

    return overview(survey([given.folder_of(folder, "folder") for folder in folders or (DEFAULT_OUT,)]))


def write_report(*folders: Where, out: Where | None = None, tables: Where | None = None, baseline: str = "") -> Written:
    """One page about runs on the disk, which opens anywhere: `fewfed report`. Where it and its tables lie.

    Without `out`, it is report.html in the folder, or here if there are several; without `tables`, they lie beside it.
    `baseline`: the method that others are compared with; else fedavg, or the first.
    """
    from fewfed.report.page import write

    places = [given.folder_of(folder, "folder") for folder in folders or (DEFAULT_OUT,)]
    page = given.folder_of(out, "out") if out else None
    return write.write_report(places, page, given.folder_of(tables, "tables") if tables else None, baseline)


def _watched(title: str, rounds: int, wanted: bool | None, work: Callable[[list[Observer]], Result]) -> Result:
    """Do some work with an observer that shows its progress."""
    from fewfed.report.progress import RoundProgress, display

    with display(title, rounds, wanted) as seen:
        return work([RoundProgress(seen)])


def _asked(
    experiment: Any, training: Any, values: Any, options: Any, executor: Any, data: Any, network: Any
) -> tuple[dict[str, Any], Own]:
    """All that a program said about runs, as `--set` takes it, and its own objects."""
    described, own = given.experiment_of(experiment, data, network)
    on, executors = _executor_of(executor)
    described = dataclasses.replace(described, executor=on) if on else described
    flat = {
        **_flat("experiment", {field.name: getattr(described, field.name) for field in dataclasses.fields(described)}),
        **_flat("training", given.training_of(training)),
        **_flat("data_options", dataclasses.asdict(given.options_of(options))),
        **{name: value for each, chosen in executors.items() for name, value in _flat(each, chosen).items()},
        **given.values_of(values),
    }
    return flat, own


def _executor_of(given: Any) -> tuple[str, dict[str, dict[str, Any]]]:
    """The name of the executor that was asked for, and those of its options that differ from its defaults."""
    if given is None or isinstance(given, str):
        return given or "", {}
    owner = plugin_of(given)
    options = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    changed = {field.name for field in dataclasses.fields(given) if options[field.name] != field.default}
    return owner.name, {owner.name: {name: options[name] for name in options if name in changed}}


def _flat(part: str, values: Named) -> dict[str, Any]:
    """Fields of a part as a comparison takes them."""
    return {f"{part}.{name}": value for name, value in values.items()}


def _refuse_busy_gpu(executor: str) -> None:
    """Runs of a comparison are processes of their own, which cannot use a GPU that their parent has begun to use."""
    if executor in ("auto", "cuda") and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise RunError(
            "this program uses the GPU already, which the processes of a comparison then cannot: compare before "
            "anything touches the GPU, in a fresh program or kernel, or with executor='sequential'"
        )
