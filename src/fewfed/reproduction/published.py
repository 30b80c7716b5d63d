"""Numbers a paper prints, read from a CSV file, and the one that belongs to a run."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fewfed.errors import ConfigError, did_you_mean
from fewfed.reproduction.coordinates import Coordinates, canonical
from fewfed.settings import check, convert

Compared = Literal["best", "last", "last10", "best_validation"]
_KEYS = ("table", "mean", "sd", "compare", "match", "where", "spelling")


@dataclass(frozen=True)
class PublishedValue:
    """A printed accuracy in percent; the deviation is None where none is printed."""

    mean: float
    sd: float | None


@dataclass(frozen=True)
class Published:
    """A published table and how its columns name what a run is."""

    table: str
    rows: tuple[Mapping[str, str], ...]
    match: Mapping[str, str]
    mean: str | Mapping[str, str] = "mean"
    sd: str | Mapping[str, str] = ""
    compare: Compared = "best"
    where: Mapping[str, str] = field(default_factory=dict)
    spelling: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def row_of(self, at: Coordinates) -> Mapping[str, str] | None:
        """The row a run belongs to; None where the paper has none."""
        wanted = {column: canonical(value) for column, value in self.where.items()}
        for column, axis in self.match.items():
            if axis not in at:
                return None
            wanted[column] = canonical(self._spelled(axis, at[axis]))
        found = [row for row in self.rows if all(canonical(row[column]) == text for column, text in wanted.items())]
        if len(found) > 1:
            raise ConfigError(
                f"{self.table} has {len(found)} rows for {dict(at)}: match more of its columns, or fix one with 'where'"
            )
        return found[0] if found else None

    def value_of(self, at: Coordinates) -> PublishedValue | None:
        """The printed number for a run; None where there is no row, no column for its method, or `NA`."""
        row = self.row_of(at)
        column = _column(self.mean, at)
        mean = None if row is None or not column else _number(row[column])
        if row is None or mean is None:
            return None
        deviation = _column(self.sd, at)
        return PublishedValue(mean, _number(row[deviation]) if deviation else None)

    def _spelled(self, axis: str, value: Any) -> Any:
        spellings = {canonical(ours): theirs for ours, theirs in self.spelling.get(axis, {}).items()}
        return spellings.get(canonical(value), value)


def read_published(entry: Mapping[str, Any], folder: Path) -> Published:
    """Make a `Published` from the [published] table of a study and the file it names."""
    for key in entry:
        if key not in _KEYS:
            raise ConfigError(f"[published]: {did_you_mean('key', key, _KEYS)}")
    for key in ("table", "match"):
        if key not in entry:
            raise ConfigError(f"[published] has no '{key}': see the format in reproduce/README.md")
    rows, columns = _read_rows(folder / str(entry["table"]))
    made = Published(
        table=str(entry["table"]),
        rows=rows,
        match={str(column): str(axis) for column, axis in entry["match"].items()},
        mean=entry.get("mean", "mean"),
        sd=entry.get("sd", ""),
        compare=convert("compare", entry.get("compare", "best"), Compared),
        where={str(column): str(value) for column, value in entry.get("where", {}).items()},
        spelling=entry.get("spelling", {}),
    )
    check(made)
    for column in (*made.match, *made.where, *_columns(made.mean), *_columns(made.sd)):
        if column not in columns:
            raise ConfigError(f"[published]: {did_you_mean(f'column of {made.table}', column, columns)}")
    return made


def _read_rows(path: Path) -> tuple[tuple[Mapping[str, str], ...], list[str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = tuple({name: value or "" for name, value in row.items() if name} for row in reader)
            return rows, list(reader.fieldnames or ())
    except OSError as error:
        raise ConfigError(f"cannot read the published table '{path}': {error.strerror or error}") from error


def _columns(given: str | Mapping[str, str]) -> list[str]:
    return [given] * bool(given) if isinstance(given, str) else list(given.values())


def _column(given: str | Mapping[str, str], at: Coordinates) -> str:
    return given if isinstance(given, str) else given.get(str(at["method"]), "")


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
