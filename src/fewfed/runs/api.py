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
from fewfed.errors import ConfigError
from fewfed.network import OWN, Network
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
    network: nn.Module | Network | str | None = None,
    out: Path | str | None = None,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run one method. `values` are its hyper-parameters; `data` and `network` may be your own objects.

    `network` may be any `nn.Module`, or what `Experiment(network=...)` takes: a name, or a file as in "net.py:build".

    Fields that `training` does not name are the method's own (`Training(epochs=2)` leaves SCAFFOLD its plain SGD).
    `executor` is a name, or an executor's options, such as `fewfed.engine.executors.cuda.options.Options(streams=4)`.
    """
    name, module = _name_or_module(network)
    experiment = _describing(experiment or Experiment(), data, name, module)
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
    prepared = prepare(resolved, data=None if data is None else checked(data), network=module)
    path = Path(out) if out else default_folder(resolved)
    refuse_existing(path)
    return execute(prepared, path, observers)


def resume(
    folder: Path | str,
    *,
    data: Dataset | None = None,
    network: nn.Module | Network | str | None = None,
    method: str = "",
    executor: str = "",
    observers: Sequence[Observer] = (),
) -> Result:
    """Continue a run that was stopped; a finished one is returned as it is. Own data and networks are given again.

    `method`: the run's method, named again. Needed where it is a file that you have not run before, since a folder
    from somebody else must not decide which code runs here; or where that file lies elsewhere by now. The same goes for
    `network` where the run's network is a file.
    `executor`: another one than the run had, where this machine lacks that.
    """
    path = Path(folder)
    opened, config = RunFolder.open(path)
    finished = opened.result()
    if finished is not None and opened.has_model():  # A model that is lost is made again from the checkpoint.
        return Result.from_json(finished)
    recorded = Resolved.from_json(config)
    name, module = _name_or_module(network)
    recorded = recorded.named(method) if method else recorded
    recorded = recorded.with_network(name) if name else recorded
    refuse_unknown(recorded, path, [kind for kind, given in (("method", method), ("network", name)) if given])
    own = None if data is None else checked(data)
    prepared = prepare(recorded.on(executor) if executor else recorded, data=own, network=module)
    remember_named(recorded)
    return continued(prepared, path, observers)


def _name_or_module(network: Any) -> tuple[str, nn.Module | Network | None]:
    if network is None or isinstance(network, (nn.Module, Network)):
        return "", network
    if isinstance(network, str):
        return network, None
    made = f"the class {network.__name__}" if isinstance(network, type) else f"a {type(network).__name__}"
    raise ConfigError(f"network is {made}: expected an nn.Module, or a text as in 'net.py:build'", key="network")


def _describing(
    experiment: Experiment, data: Dataset | None, name: str, module: nn.Module | Network | None
) -> Experiment:
    """The experiment with the names of the user's own objects in place of those it would have looked up."""
    if data is not None:
        experiment = dataclasses.replace(experiment, data=data.name)
    if isinstance(module, nn.Module):
        name = OWN
    elif module is not None:
        name = module.name
    return dataclasses.replace(experiment, network=name) if name else experiment
