"""Methods by name. `name`, `name:preset`, `wrapper(name)` and `path/to/file.py` all name one."""

from __future__ import annotations

import importlib
import pkgutil
import re
import typing
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cache
from typing import Any

from fewfed import methods as package
from fewfed.changed import FUNCTIONS, hint, refuse_old_functions
from fewfed.code_file import run_file
from fewfed.errors import ConfigError, FewfedError, did_you_mean, told
from fewfed.method import Method, Preset
from fewfed.settings import make, shown

EXPECTED = "a Python file that defines one method"
"""What a file is that names a method."""

_LONGEST = 4096
_DEEPEST = 16
"""Longest name of a method, which may be the path of a file, and most wrappers around one."""


@dataclass(frozen=True)
class Chosen:
    """A method as a user named it, with the preset's values for the training around it."""

    method: Method
    preset: str
    training: Mapping[str, Any]


def registered() -> Mapping[str, type[Method]]:
    """Every method of this package by name."""
    return {name: cls for (name, variant), cls in _found().items() if not variant}


def presets_of(name: str) -> tuple[str, ...]:
    """Names of a method's presets; `paper` is the defaults."""
    variants = [variant for method, variant in _found() if method == name and variant]
    return ("paper", *(_lookup(name).presets), *variants)


@cache
def _found() -> Mapping[tuple[str, str], type[Method]]:
    """Each module of `fewfed.methods` that defines a class with a name."""
    found: dict[tuple[str, str], type[Method]] = {}
    for module in pkgutil.iter_modules(package.__path__):
        for cls in _methods_in(importlib.import_module(f"{package.__name__}.{module.name}")):
            found[cls.name, cls.variant] = cls
    return dict(sorted(found.items()))


def choose(spec: str, values: Mapping[str, Any] | None = None) -> Chosen:
    """The method a text names, with `values` over its preset's, over its defaults. `a.b=1` sets b of what a wraps."""
    values = dict(values or {})
    if len(spec) > _LONGEST or spec.count("(") > _DEEPEST:
        raise ConfigError(f"method {shown(spec)}: expected a short name with at most {_DEEPEST} brackets", key="method")
    wrapped = re.fullmatch(r"([\w-]+(?::[\w-]+)?)\((.+)\)", spec.strip())
    if wrapped:
        return _wrap(wrapped[1], wrapped[2], values)
    name, _, preset = spec.strip().partition(":")
    # A file is its own method even where it carries the name of one of this package's.
    from_file = name.endswith(".py")
    cls = _from_file(name) if from_file else _lookup(name)
    known = ("paper", *cls.presets) if from_file else presets_of(name)
    if preset and preset not in known:
        raise ConfigError(did_you_mean(f"preset of method '{cls.name}'", preset, known), key="method", value=spec)
    if not from_file and (name, preset) in _found():
        cls = _found()[name, preset]
    chosen = cls.presets.get(preset, Preset())
    training = {**cls.own_training, **chosen.training}
    return Chosen(_made(cls, {**chosen.method, **values}), preset or "paper", training)


def _made(cls: type[Method], values: Mapping[str, Any]) -> Method:
    owner = f"method '{cls.name}'"
    try:
        return make(cls, values, owner)
    except FewfedError:
        raise
    except Exception as error:  # A class of the user's may do anything when it is made.
        raise ConfigError(f"{owner} cannot be made: {told(error)}", key="method") from error


def wrapped_field(cls: type[Method]) -> str | None:
    """The name of the field that holds the method a wrapper wraps, or None for a plain method."""
    return next((name for name, hint in typing.get_type_hints(cls).items() if hint is Method), None)


def _wrap(outer: str, inner: str, values: dict[str, Any]) -> Chosen:
    name = outer.split(":")[0]
    field = wrapped_field(_lookup(name))
    if field is None:
        raise ConfigError(f"method '{name}' wraps nothing: write '{name}' without brackets", key="method")
    prefix = f"{field}."
    inside = choose(inner, {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)})
    own = {k: v for k, v in values.items() if not k.startswith(prefix)}
    around = choose(outer, {field: inside.method, **own})
    preset = around.preset if around.preset != "paper" else inside.preset
    return Chosen(around.method, preset, {**inside.training, **around.training})


def _lookup(name: str) -> type[Method]:
    known = registered()
    if name not in known:
        raise ConfigError(did_you_mean("method", name, known), key="method", value=name)
    return known[name]


def _from_file(path: str) -> type[Method]:
    try:
        module = run_file(path, "method", EXPECTED)
    except ConfigError as error:
        cause = error.__cause__
        raise ConfigError(f"{error}{hint(cause) if isinstance(cause, Exception) else ''}") from cause
    found = _methods_in(module)
    if len(found) != 1:
        raise ConfigError(f"'{path}' defines {len(found)} methods: expected one subclass of Method with a name")
    _refuse_odd_class(found[0], path)
    refuse_old_functions(found[0], path)
    return found[0]


def _refuse_odd_class(cls: type[Method], path: str) -> None:
    """Raise where what a class says of itself cannot be used."""
    name: Any = cls.name
    if not isinstance(name, str) or not name:
        raise ConfigError(f"'{path}': {cls.__name__}.name is {name!r}: expected a text that is not empty")
    for kind, attributes in {Mapping: ("presets", "own_training"), Set: ("observed",)}.items():
        for attribute in attributes:
            value = getattr(cls, attribute)
            if not isinstance(value, (kind, property)):
                raise ConfigError(f"'{path}': {cls.__name__}.{attribute} is {value!r:.60}: expected a {kind.__name__}")
    for preset, value in cls.presets.items():
        if not isinstance(value, Preset):
            raise ConfigError(f"'{path}': preset {preset!r} of {cls.__name__} is {value!r:.60}: expected a Preset")
    for function in (*FUNCTIONS, "phases", "server_init", "client_init", "predictor", "check"):
        if not callable(getattr(cls, function)):
            raise ConfigError(f"'{path}': {cls.__name__}.{function} is no function: expected one, or none at all")


def _methods_in(module: Any) -> list[type[Method]]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Method)
        and value.__module__ == module.__name__
        and "name" in vars(value)
    ]
