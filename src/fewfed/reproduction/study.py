"""A study: the runs behind one table or figure, and what the paper prints for them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from fewfed.reproduction.coordinates import Coordinates, Value
from fewfed.reproduction.curve import CurvePoint
from fewfed.reproduction.published import Published
from fewfed.runs.cells import Cell
from fewfed.runs.experiment import Resolved


@dataclass(frozen=True)
class Planned:
    """One run of a study: where it stands in the table, and its configuration."""

    at: Coordinates
    resolved: Resolved

    @property
    def setting(self) -> tuple[tuple[str, Value], ...]:
        """Its row of the table: every axis but the seed."""
        return tuple((axis, value) for axis, value in self.at.items() if axis != "seed")

    @property
    def name(self) -> str:
        """The name of its run folder."""
        shown = ("data", "split", "method")
        parts = [str(value) if axis in shown else f"{axis}{value}" for axis, value in self.at.items()]
        return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)

    def cell(self, root: Path) -> Cell:
        return Cell(self.name, self.resolved, root / self.name)


@dataclass(frozen=True)
class Study:
    """One table or figure."""

    name: str
    what: str
    paper: str
    runs: tuple[Planned, ...]
    axes: tuple[str, ...]
    """Columns of its table that say what was run, without the seed."""
    published: Published | None = None
    curve: tuple[CurvePoint, ...] = ()
    terms: tuple[str, ...] = ()
    metric: tuple[str, ...] = ("accuracy",)
    """What is compared with the published number: the first of these that a run measures."""
    note: str = ""
    values: dict[str, list[Value]] = field(default_factory=dict)
    """The values of every axis, in the order of the file."""
