"""A network from a user's file, named as `path/to/net.py:build`."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fewfed.code_file import run_file
from fewfed.errors import ConfigError, did_you_mean, told
from fewfed.network import Network
from fewfed.networks.shapes import Shape

USUAL = "build"
"""The function that is called where none is named."""

EXPECTED = "a Python file with a function that returns an nn.Module, named as in net.py:build"


class Named(NamedTuple):
    """Where a network is to be found: a file, and a name in it."""

    file: str
    name: str


def named_in(network: str) -> Named | None:
    """The file and the name in it that a network's name means; None where it means no file."""
    file, _, name = network.rpartition(":")
    if network.endswith(".py"):
        return Named(network, USUAL)
    return Named(file, name) if file.endswith(".py") else None


def build(place: Named, shape: Shape, classes: int, seed: int, example: Tensor | None = None) -> Network:
    """The network that a user's file describes. What it draws while it is made depends on the seed alone.

    `example`: a few inputs to find stages with; without them blank ones are used.
    """
    with _seeded(seed):
        found = _looked_up(run_file(place.file, "network", EXPECTED), place)
    with _seeded(seed):  # Anew: what else the file makes is not to change these weights.
        module = _made(found, place, shape, classes)
    weights = next((value for value in module.parameters() if value.is_floating_point()), torch.zeros(0))
    blank = torch.zeros(1, *shape, dtype=weights.dtype)
    return Network.of(module, f"{place.file}:{place.name}", example=blank if example is None else example)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers of torch, numpy and Python from a seed; afterwards as they were."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def _made(found: Any, place: Named, shape: Shape, classes: int) -> nn.Module:
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise ConfigError(
            f"'{place.name}' in '{place.file}' is a {type(found).__name__}: expected a function that returns an "
            "nn.Module, or a module"
        )
    where = f"'{place.name}' ({_line(found, place)})"
    positional, named = _arguments(found, where, {"shape": shape, "classes": classes})
    try:
        module = found(*positional, **named)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # Also `sys.exit()`: a user's function must not end the program.
        raise ConfigError(f"{where} could not make a network: {told(error)}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{where} returned {_kind(module)}: expected an nn.Module")
    return module


def _looked_up(module: ModuleType, place: Named) -> Any:
    if place.name in vars(module):
        return vars(module)[place.name]
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    if not own or not place.name:
        raise ConfigError(f"network file '{place.file}' has no '{place.name}': expected {EXPECTED}")
    raise ConfigError(did_you_mean(f"name in '{place.file}'", place.name, own))


def _arguments(function: Callable[..., Any], where: str, known: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """What a function asks for, by the names of its parameters."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in _parameters(function).items():
        if name in known and parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append(known[name])
        elif name in known:
            named[name] = known[name]
        elif parameter.default is inspect.Parameter.empty and parameter.kind not in _REST:
            raise ConfigError(
                f"{where} asks for '{name}': expected a function of 'shape' (of one input) and 'classes', of one of "
                "them, or of nothing"
            )
    return positional, named


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # Some functions that are not written in Python do not say.
        return {}


def _line(found: Any, place: Named) -> str:
    file = Path(place.file).name
    try:
        return f"{file}, line {inspect.getsourcelines(found)[1]}"
    except (OSError, TypeError):  # It is an object that can be called, or made elsewhere.
        return file


def _kind(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "nothing" if value is None else f"a {type(value).__name__}"
