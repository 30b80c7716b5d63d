"""The entry that makes an executor known by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fewfed.engine.choices import Choices
from fewfed.engine.executor import Executor
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job


@dataclass(frozen=True)
class NoOptions:
    """Options of an executor that has none."""

    def exact(self) -> NoOptions:
        return self


@dataclass(frozen=True)
class Plugin:
    """An executor by name: its options, a frozen dataclass of settings, and how it is made."""

    name: str
    what: str
    make: Callable[[Job, SimulatedHomes, Any, Choices], Executor]
    options: type[Any] = NoOptions
    """Has a function `exact` that returns the same options without choices that change how numbers round."""
    unavailable: Callable[[], str] = lambda: ""
    """Why it cannot be used on this machine, as the end of a sentence; empty where it can."""
