"""The doors of the package: run a method, and go on with a run that was stopped."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from fewfed.data.examples import Dataset, checked
from fewfed.data.readers.options import DataOptions
from fewfed.engine.executors.registry import plugin_of
from fewfed.engine.loop import Observer
from fewfed.network import Network
from fewfed.runs.execute import continued, execute
from fewfed.runs.experiment import Experiment, Resolved, layered
from fewfed.runs.folder import RunFolder, refuse_existing
from fewfed.runs.naming import default_folder
from fewfed.runs.prepare import prepare
from fewfed.runs.results import Result
from fewfed.runs.user_code import refuse_unknown, remember_named
from fewfed.training import Training


def run(
    method: str,
    experiment: Experiment | None = None,
    training: Training | None = None,
    *,
    values: dict[str, Any] | None = None,
    options: DataOptions | None = None,
    executor: Any = None,
    data: Dataset | None = None,
    network: nn.Module | Network | None = None,
    out: Path | str | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run one method. `values` are its hyper-parameters; `data` and `network` may be your own objects.

    Fields that `training` does not name are the method's own (`Training(epochs=2)` leaves SCAFFOLD its plain SGD).
    `executor` is a name, or an executor's options, such as `fewfed.engine.executors.cuda.options.Options(streams=4)`.
    """
    experiment = _describing(experiment or Experiment(), data, network)
    executors: dict[str, dict[str, Any]] = {}
    if isinstance(executor, str):
        experiment = dataclasses.replace(experiment, executor=executor)
    elif executor is not None:
        owner = plugin_of(executor)
        experiment = dataclasses.replace(experiment, executor=owner.name)
        executors[owner.name] = {
            field.name: getattr(executor, field.name)
            for field in dataclasses.fields(executor)
            if getattr(executor, field.name) != field.default
        }
    stated = training.stated() if training else {}
    resolved = layered(method, values or {}, experiment, stated, options or DataOptions(), executors)
    prepared = prepare(resolved, data=None if data is None else checked(data), network=network)
    path = Path(out) if out else default_folder(prepared.resolved)
    refuse_existing(path)
    return execute(prepared, path, observers)


def resume(
    folder: Path | str,
    *,
    data: Dataset | None = None,
    network: nn.Module | Network | None = None,
    method: str = "",
    executor: str = "",
    observers: Sequence[Observer] = (),
) -> Result:
    """Continue a run that was stopped; a finished one is returned as it is. Own data and networks are given again.

    `method`: the run's method, named again. Needed where it is a file that you have not run before, since a folder
    from somebody else must not decide which code runs here; or where that file lies elsewhere by now.
    `executor`: another one than the run had, where this machine lacks that.
    """
    path = Path(folder)
    opened, config = RunFolder.open(path)
    finished = opened.result()
    if finished is not None and opened.has_model():  # A model that is lost is made again from the checkpoint.
        return Result.from_json(finished)
    recorded = Resolved.from_json(config)
    if method:
        recorded = recorded.named(method)
    else:
        refuse_unknown(recorded.spec, path)
    own = None if data is None else checked(data)
    prepared = prepare(recorded.on(executor) if executor else recorded, data=own, network=network)
    if method:
        remember_named(method)
    return continued(prepared, path, observers)


def _describing(experiment: Experiment, data: Dataset | None, network: nn.Module | Network | None) -> Experiment:
    """The experiment with the names of the user's own objects in place of those it would have looked up."""
    if data is not None:
        experiment = dataclasses.replace(experiment, data=data.name)
    if network is not None:
        experiment = dataclasses.replace(experiment, network=Network.of(network).name)  # type: ignore[arg-type]
    return experiment
