"""What changed for authors of methods: a file written for fewfed 0.1 is told so, instead of failing in some odd way."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import MappingProxyType

from fewfed.errors import ConfigError
from fewfed.method import Exchange, Method
from fewfed.wrapper import Wrapper

READ = "CHANGELOG.md says what changed in 0.2"

MOVED: Mapping[str, str] = MappingProxyType(
    {
        "fewfed.augmentation": "fewfed.methods.parts.augmentation",
        "fewfed.buffer": "fewfed.methods.parts.buffer",
        "fewfed.local_score": "fewfed.methods.parts.local_score",
        "fewfed.pairing": "fewfed.methods.parts.pairing",
        "fewfed.server_optim": "fewfed.methods.parts.server_optim",
        "fewfed.statistics": "fewfed.methods.parts.statistics",
        "fewfed.losses_features": "fewfed.losses.features",
        "fewfed.segmentation": "fewfed.tasks.segmentation",
        "fewfed.experiment": "fewfed.runs.experiment",
        "fewfed.optim": "fewfed.training",
        "Draws": "Random",
    }
)
"""Modules and names of 0.1 that methods import, and what they are called now."""

FUNCTIONS = tuple(name for name, value in vars(Exchange).items() if inspect.isfunction(value))
"""The functions of a phase."""


def hint(error: Exception) -> str:
    """What to say of an error while a method file was loaded, where it comes from an old import."""
    if isinstance(error, ImportError):
        for old, new in MOVED.items():
            if f"'{old}'" in str(error):
                return f"; since 0.2 it is {new}: {READ}"
    return ""


def refuse_old_functions(cls: type[Method], path: str) -> None:
    """Raise where a method's functions are not those that this version calls."""
    for name in FUNCTIONS:
        function = getattr(cls, name)
        if function is getattr(Exchange, name):
            continue
        if issubclass(cls, Wrapper):
            raise ConfigError(
                f"'{path}': {cls.__name__}.{name} would never be called: expected a wrapper's functions of a phase in "
                f"a subclass of Around, which its function 'around' hands out; {READ}"
            )
        expected = list(inspect.signature(getattr(Exchange, name)).parameters)
        found = list(inspect.signature(function).parameters)
        if len(found) != len(expected):
            raise ConfigError(
                f"'{path}': {cls.__name__}.{name}({', '.join(found)}): expected {name}({', '.join(expected)}); the "
                f"functions of each phase stand together, so none is told its phase any more; {READ}"
            )
