"""What a program hands to the doors of this package, in the types that everything behind them expects.

A wrong type is told in a sentence, as on the command line. Mappings stand for settings, paths for texts, and NumPy's
numbers for Python's.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import nn

from fewfed.data.examples import Dataset, checked
from fewfed.data.readers.options import DataOptions
from fewfed.engine.loop import Observer
from fewfed.errors import ConfigError, RunError
from fewfed.method import Method
from fewfed.network import Network
from fewfed.runs.experiment import Experiment
from fewfed.runs.own import Own
from fewfed.runs.tuning import Axis
from fewfed.settings import make, shown
from fewfed.training import Training

S = TypeVar("S", Experiment, DataOptions)


def method_of(given: Any) -> str:
    """A method by its name. A class or an object has none that a resumed run could find again."""
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    if isinstance(given, str):
        return given
    if isinstance(given, Method) or (isinstance(given, type) and issubclass(given, Method)):
        cls = given if isinstance(given, type) else type(given)
        raise ConfigError(
            f"method = {shown(given)}: expected a name, since a run must find its method again: '{cls.name}' if it is "
            f"one of this package's, or the path of the Python file that defines {cls.__name__}; values= are its fields"
        )
    raise ConfigError(f"method = {shown(given)}: expected the name of a method, or the path of a Python file")


def methods_of(given: Any) -> tuple[str, ...]:
    """Several methods by their names."""
    if isinstance(given, (str, os.PathLike, Method, type)) or not isinstance(given, Sequence):
        raise ConfigError(f"methods = {shown(given)}: expected a list of names, as in ['fedavg', 'flea']")
    return tuple(method_of(each) for each in given)


def axes_of(given: Any) -> tuple[Axis, ...]:
    """What is searched: a list of values for each setting."""
    named = _named(given, "over", "{'lr': [0.001, 0.01]}")
    for name, values in named.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(f"over: {name} = {shown(values)}: expected a list of values, as in [0.001, 0.01]")
        if len({str(_plain(value)) for value in values}) < len(values):
            raise ConfigError(f"over: {name} = {shown(values)}: expected every value once")
    return tuple(Axis(name, tuple(_plain(value) for value in values)) for name, values in named.items())


def experiment_of(given: Any, data: Any, network: Any) -> tuple[Experiment, Own]:
    """The experiment, and the user's own objects beside it. `data` and `network` may also be names or paths."""
    experiment = _settings(Experiment, given, "experiment", "Experiment(rounds=30)")
    if isinstance(data, (str, os.PathLike)):
        experiment = dataclasses.replace(experiment, data=os.fspath(data))
    if isinstance(network, (str, os.PathLike)):
        experiment = dataclasses.replace(experiment, network=os.fspath(network))
    own = own_of(data, network)
    return own.described(experiment), own


def own_of(data: Any, network: Any) -> Own:
    """The user's own objects, checked; names and paths are none."""
    if isinstance(network, type):
        raise ConfigError(f"network = {shown(network)}: expected an object, as in network={network.__name__}(...)")
    if network is not None and not isinstance(network, (str, os.PathLike, nn.Module, Network)):
        raise ConfigError(f"network = {shown(network)}: expected a torch.nn.Module, or the name of a network")
    return Own(
        None if data is None or isinstance(data, (str, os.PathLike)) else checked(data),
        network if isinstance(network, (nn.Module, Network)) else None,
    )


def training_of(given: Any) -> dict[str, Any]:
    """The fields of the training that were named."""
    if given is None:
        return {}
    if isinstance(given, Training):
        return {name: _plain(value) for name, value in given.stated().items()}
    return _named(given, "training", "Training(epochs=2)")


def options_of(given: Any) -> DataOptions:
    return _settings(DataOptions, given, "options", "DataOptions(label='diagnosis')")


def values_of(given: Any) -> dict[str, Any]:
    """Hyper-parameters of a method by name."""
    return {} if given is None else _named(given, "values", "{'mu': 0.1}")


def folder_of(given: Any, name: str) -> Path:
    """A folder by its path."""
    if isinstance(given, bytes) or not isinstance(given, (str, os.PathLike)):
        raise RunError(f"{name} = {shown(given)}: expected the path of a folder")
    return Path(given)


def count_of(given: Any, name: str, least: int) -> int:
    """A whole number."""
    given = _plain(given)
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise ConfigError(f"{name} = {shown(given)}: expected a whole number from {least} on", key=name)
    return given


def observers_of(given: Any) -> Sequence[Observer]:
    """Observers, each with its function."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise ConfigError(f"observers = {shown(given)}: expected a list of them")
    for each in given:
        if isinstance(each, type) or not callable(getattr(each, "after_round", None)):
            raise ConfigError(f"observer {shown(each)}: expected an object with a function after_round(view)")
    return given


def wanted(given: Any) -> bool | None:
    """Whether progress is shown; None leaves it to where the program runs."""
    if given is not None and not isinstance(given, bool):
        raise ConfigError(f"progress = {shown(given)}: expected True, False or None")
    return given


def _settings(cls: type[S], given: Any, name: str, example: str) -> S:
    if given is None:
        return cls()
    if not isinstance(given, cls):
        return make(cls, _named(given, name, example), "the experiment" if cls is Experiment else "data_options")
    fields = {field.name: getattr(given, field.name) for field in dataclasses.fields(given) if field.init}
    for field, value in fields.items():
        if isinstance(value, (Dataset, nn.Module, Network)):
            raise ConfigError(f"{name}: {field} is a {type(value).__name__}: give it beside the {name}, as {field}=")
    changed = {field: _plain(value) for field, value in fields.items() if _plain(value) is not value}
    return dataclasses.replace(given, **changed) if changed else given


def _named(given: Any, name: str, example: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name} = {shown(given)}: expected named values, as in {example}")
    for key in given:
        if not isinstance(key, str):
            raise ConfigError(f"{name} has a field {shown(key)}: expected names, as in {example}")
    return {key: _plain(value) for key, value in given.items()}


def _plain(value: Any) -> Any:
    """A number of NumPy's as Python's, and a path as text: what a configuration can be written with."""
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value
