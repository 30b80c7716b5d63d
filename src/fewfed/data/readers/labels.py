"""Labels and group names as users write them, turned into integers from 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fewfed.data.limits import Limits
from fewfed.errors import DataError

MOST_CLASSES = 1 << 31
SHOWN = 40
"""Characters of a label that an error repeats."""


@dataclass(frozen=True)
class Labels:
    """Class ids of each part, how many classes there are and what they are called."""

    parts: tuple[np.ndarray, ...]
    classes: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Column:
    """Cells of text, where they come from, and the bytes they are stored in."""

    where: str
    cells: Sequence[str]
    stored: int

    def as_labels(self, limits: Limits) -> np.ndarray:
        """Integers if every cell is one, else the text."""
        numbers = _integers(self.cells)
        if numbers is None:
            return self._text(limits)
        for row, number in enumerate(numbers, start=1):
            if abs(number) >= 1 << 63:
                raise DataError(f"{self.where}, row {row} has label {_shown(str(number))}: expected a class from 0")
        return np.array(numbers, dtype=np.int64)

    def as_groups(self, limits: Limits) -> np.ndarray:
        """Integers if every cell is one that fits, else the text: names of groups may be numbers of any length."""
        numbers = _integers(self.cells)
        if numbers is None or any(abs(number) >= 1 << 63 for number in numbers):
            return self._text(limits)
        return np.array(numbers, dtype=np.int64)

    def _text(self, limits: Limits) -> np.ndarray:
        # Every cell takes the room of the longest.
        longest = max(map(len, self.cells), default=0)
        limits.check(
            f"{self.where} with its longest text of {longest} letters", 4 * longest * len(self.cells), self.stored
        )
        return np.array(self.cells, dtype=str)


def class_ids(name: str, parts: Sequence[np.ndarray], classes: int = 0, names: tuple[str, ...] = ()) -> Labels:
    """Whole numbers are kept as they are; text becomes ids in sorted order. `classes` or `names` fix the number."""
    columns = [_one_per_row(name, part) for part in parts]
    if not sum(map(len, columns)):
        raise DataError(f"data '{name}' is empty: expected at least one labelled row")
    if any(column.dtype.kind in "US" for column in columns):
        return _from_text(name, [_as_text(f"data '{name}': labels", column) for column in columns], classes)
    ids = tuple(whole_numbers(f"data '{name}'", column) for column in columns)
    declared = classes or len(names)
    return Labels(ids, declared or _count(name, np.concatenate(ids)), names)


def whole_numbers(where: str, column: np.ndarray) -> np.ndarray:
    """Labels as int64, or a `DataError` that names the first that is no class: a fraction, NaN, negative or endless."""
    if column.dtype.kind not in "biuf":
        raise DataError(f"{where}: labels are of type {column.dtype}; expected whole numbers or text")
    if column.dtype.kind == "b":
        return column.astype(np.int64)
    with np.errstate(invalid="ignore", over="ignore"):
        if column.dtype.kind == "f":
            broken = ~np.isfinite(column) | (column != np.round(column))
            _refuse(where, column, broken, "a class as a whole number from 0 or text")
        _refuse(where, column, column < 0, "classes numbered from 0")
        _refuse(where, column, column >= MOST_CLASSES, f"classes numbered from 0, fewer than {MOST_CLASSES}")
        return column.astype(np.int64)


def group_ids(name: str, values: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """One integer id a row, and the groups' names in the order of their ids. `name` is for an error."""
    if values.dtype.kind not in "biufUSmM":
        raise DataError(f"{name} are of type {values.dtype}; expected numbers or text")
    plain = _as_text(name, values) if values.dtype.kind == "S" else values
    names, ids = np.unique(plain, return_inverse=True)
    return ids.reshape(-1).astype(np.int64), tuple(str(one) for one in names)


def _integers(cells: Sequence[str]) -> list[int] | None:
    try:
        return [int(cell) for cell in cells]
    except ValueError:
        return None


def _one_per_row(name: str, raw: np.ndarray) -> np.ndarray:
    column = raw[:, 0] if raw.ndim == 2 and raw.shape[1] == 1 else raw
    if column.ndim != 1:
        raise DataError(f"data '{name}': labels have shape {raw.shape}; expected one label a row")
    return column


def _as_text(where: str, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind not in "biufUS":
        raise DataError(f"{where} are of type {column.dtype}; expected whole numbers or text")
    if column.dtype.kind != "S":
        return column.astype(str)
    try:
        return np.char.decode(column, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{where} hold bytes that are no text: expected UTF-8, or whole numbers") from error


def _from_text(name: str, columns: Sequence[np.ndarray], classes: int) -> Labels:
    names, ids = np.unique(np.concatenate(columns), return_inverse=True)
    if classes and classes != len(names):
        raise DataError(
            f"data '{name}': {len(names)} different text labels but classes = {classes}; "
            "expected as many, or labels written as numbers from 0"
        )
    ends = np.cumsum([len(column) for column in columns])[:-1]
    return Labels(tuple(np.split(ids.astype(np.int64), ends)), len(names), tuple(str(label) for label in names))


def _refuse(where: str, column: np.ndarray, broken: np.ndarray, expected: str) -> None:
    if broken.any():
        row = int(np.flatnonzero(broken)[0])
        raise DataError(f"{where}, row {row} has label {_shown(str(column[row]))}: expected {expected}")


def _count(name: str, ids: np.ndarray) -> int:
    # A hole is nearly always a file that counts from 1 or uses codes, and would train outputs that nothing ever fills.
    present = np.unique(ids)
    if len(present) != int(present[-1]) + 1:
        hole = int(np.flatnonzero(present != np.arange(len(present)))[0])
        raise DataError(
            f"data '{name}': labels go up to {present[-1]} but {hole} never occurs; expected classes numbered from 0 "
            "without gaps (or set 'classes' to their number)"
        )
    return len(present)


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
