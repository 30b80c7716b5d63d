"""Executors by name: those of this package, and those that other packages register.

Another package adds one with an entry point of the group `fewfed.executors` that names a `Plugin`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from fewfed.engine import executors as package
from fewfed.engine.executors.plugin import Plugin
from fewfed.errors import ConfigError, did_you_mean, in_one_line

GROUP = "fewfed.executors"


@cache
def plugins() -> Mapping[str, Plugin]:
    """Every executor there is."""
    found: dict[str, Plugin] = {}
    for module in pkgutil.iter_modules(package.__path__):
        name = f"{package.__name__}.{module.name}" + (".plugin" if module.ispkg else "")
        plugin = getattr(importlib.import_module(name), "PLUGIN", None)
        if plugin is not None:
            found[plugin.name] = plugin
    for point in entry_points(group=GROUP):
        try:
            plugin = point.load()
        except Exception as error:
            why = f"{type(error).__name__}: {in_one_line(error)}"
            raise ConfigError(f"{_said(point)} cannot be loaded ({why}): repair or remove its package") from error
        if not isinstance(plugin, Plugin) or plugin.name in found:
            raise ConfigError(f"{_said(point)}: expected a Plugin with a name of its own; repair or remove its package")
        found[plugin.name] = plugin
    return dict(sorted(found.items()))


def plugin(name: str) -> Plugin:
    """An executor by name, or an error that suggests one."""
    known = plugins()
    if name not in known:
        raise ConfigError(did_you_mean("executor", name, [*known, "auto"]), key="executor", value=name)
    return known[name]


def plugin_of(options: object) -> Plugin:
    """The executor whose options some object is."""
    for each in plugins().values():
        if type(options) is each.options and each.options is not type(None):
            return each
    raise ConfigError(f"executor = {options!r}: expected an executor's name or its options", key="executor")


def _said(point: EntryPoint) -> str:
    return f"entry point '{point.value}' of group {GROUP}"
