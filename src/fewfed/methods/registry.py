"""Methods by name. `name`, `name:preset`, `wrapper(name)` and `path/to/file.py` all name one."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fewfed import methods as package
from fewfed.changed import hint, refuse_old_functions
from fewfed.errors import ConfigError, did_you_mean
from fewfed.method import Method, Preset
from fewfed.settings import make


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
    return Chosen(make(cls, {**chosen.method, **values}, f"method '{cls.name}'"), preset or "paper", training)


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
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"there is no method file '{path}': expected a Python file that defines one method")
    module_name = f"fewfed_user_method_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Registered by name, as the import system does: dataclasses look their module up there.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(
            f"method file '{path}' cannot be loaded: {type(error).__name__}: {error}{hint(error)}"
        ) from error
    found = _methods_in(module)
    if len(found) != 1:
        raise ConfigError(f"'{path}' defines {len(found)} methods: expected one subclass of Method with a name")
    refuse_old_functions(found[0], path)
    return found[0]


def _methods_in(module: Any) -> list[type[Method]]:
    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Method)
        and value.__module__ == module.__name__
        and "name" in vars(value)
    ]
