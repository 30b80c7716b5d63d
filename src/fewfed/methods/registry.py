"""Methods by name. `name`, `name:preset`, `wrapper(name)` and `path/to/file.py` all name one."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
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
from fewfed.settings import make
from fewfed.spelling import Spelled, spelled

EXPECTED = "a Python file that defines one method"
"""What a file is that names a method."""


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
    return _chosen(spelled(spec), dict(values or {}))


def _chosen(written: Spelled, values: Mapping[str, Any]) -> Chosen:
    if written.inner is not None:
        return _wrap(written, written.inner, values)
    name, preset = written.name, written.preset
    # A file is its own method even where it carries the name of one of this package's.
    cls = class_of(name)
    known = ("paper", *cls.presets) if written.is_file else presets_of(name)
    if preset and preset not in known:
        raise ConfigError(
            did_you_mean(f"preset of method '{cls.name}'", preset, known), key="method", value=written.alone
        )
    if not written.is_file and (name, preset) in _found():
        cls = _found()[name, preset]
    chosen = cls.presets.get(preset, Preset())
    training = {**cls.own_training, **chosen.training}
    return Chosen(_made(cls, {**chosen.method, **values}), preset or "paper", training)


def class_of(name: str) -> type[Method]:
    """The class of a registered method, or that in a file."""
    return _from_file(name) if name.endswith(".py") else _lookup(name)


def label_of(spec: str) -> str:
    """A method as tables show it: as it is written, and a file by the name of the method in it."""
    return _label(spelled(spec))


def layers_of(spec: str) -> dict[str, tuple[str, type[Method]]]:
    """The methods of a composition by their own names: how fields of each are addressed ("", "inner.", ...), and its
    class. Of two with the same name, the outer one."""
    found: dict[str, tuple[str, type[Method]]] = {}
    for prefix, cls in every_layer(spec).items():
        found.setdefault(cls.name, (prefix, cls))
    return found


def every_layer(spec: str) -> dict[str, type[Method]]:
    """The classes of a composition, outermost first, by how fields of each are addressed: "", "inner.", ..."""
    found: dict[str, type[Method]] = {}
    written: Spelled | None = spelled(spec)
    prefix = ""
    while written is not None:
        cls = found[prefix] = class_of(written.name)
        prefix, written = f"{prefix}{wrapped_field(cls)}.", written.inner
    return found


def _label(written: Spelled) -> str:
    name = class_of(written.name).name if written.is_file else written.name
    alone = f"{name}:{written.preset}" if written.preset else name
    return alone if written.inner is None else f"{alone}({_label(written.inner)})"


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


def _wrap(outer: Spelled, inner: Spelled, values: Mapping[str, Any]) -> Chosen:
    cls = class_of(outer.name)
    field = wrapped_field(cls)
    if field is None:
        raise ConfigError(f"method '{cls.name}' wraps nothing: write '{outer.name}' without brackets", key="method")
    prefix = f"{field}."
    inside = _chosen(inner, {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)})
    own = {k: v for k, v in values.items() if not k.startswith(prefix)}
    around = _chosen(dataclasses.replace(outer, inner=None), {field: inside.method, **own})
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
    try:
        typing.get_type_hints(cls)
    except Exception as error:  # A name that is only imported for type checkers, say.
        raise ConfigError(f"'{path}': the annotations of {cls.__name__} cannot be read: {told(error)}") from error
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
