"""Labels and group names as users write them, turned into integers from 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fewfed.data.limits import Limits
from fewfed.data.readers.cells import codes_in, name_of, number_of
from fewfed.errors import DataError

MOST_CLASSES = 1 << 31
LARGEST_EXACT = 2.0**53
"""From here on floating point no longer tells whole numbers apart."""
MOST_GRADES, ROWS_A_GRADE = 10, 4
"""Labels with fractions are classes if they are no more than this, and have so many rows each."""
FEW_CLASSES, ROWS_A_CLASS = 10, 2
"""More classes than this need so many rows each, unless somebody says that these are classes."""
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
        """Numbers if every cell is one, else the text."""
        numbers = codes_in(self.cells)
        return self._text(limits) if numbers is None else numbers

    def as_groups(self, limits: Limits) -> np.ndarray:
        """Whole numbers if every cell is one, else the text."""
        numbers = codes_in(self.cells)
        if numbers is None or bool((numbers != np.floor(numbers)).any()):
            return self._text(limits)
        return numbers.astype(np.int64)

    def _text(self, limits: Limits) -> np.ndarray:
        # Every cell takes the room of the longest.
        longest = max(map(len, self.cells), default=0)
        limits.check(
            f"{self.where} with its longest text of {longest} letters", 4 * longest * len(self.cells), self.stored
        )
        return np.array(self.cells, dtype=str)


def class_ids(name: str, parts: Sequence[np.ndarray], classes: int = 0, names: tuple[str, ...] = ()) -> Labels:
    """Every label that occurs is a class, in sorted order: numbers as numbers, text as text.

    `classes` or `names` fix the number of classes; labels then are whole numbers from 0, whether they occur or not.
    """
    columns = [_one_per_row(name, part) for part in parts]
    if not sum(map(len, columns)):
        raise DataError(f"data '{name}' is empty: expected at least one labelled row")
    if any(column.dtype.kind in "US" for column in columns):
        return _from_text(name, [_as_text(f"data '{name}': labels", column) for column in columns], classes)
    if classes or names:
        ids = tuple(whole_numbers(f"data '{name}'", column) for column in columns)
        return Labels(ids, classes or len(names), names)
    return _from_numbers(name, columns)


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
    return ids.reshape(-1).astype(np.int64), tuple(name_of(one) for one in names)


def _one_per_row(name: str, raw: np.ndarray) -> np.ndarray:
    column = raw[:, 0] if raw.ndim == 2 and raw.shape[1] == 1 else raw
    if column.ndim != 1:
        raise DataError(f"data '{name}': labels have shape {raw.shape}; expected one label a row")
    return column


def _as_text(where: str, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind not in "biufUS":
        raise DataError(f"{where} are of type {column.dtype}; expected whole numbers or text")
    if column.dtype.kind == "U":
        return column
    if column.dtype.kind != "S":
        return np.array([name_of(value) for value in column.tolist()], dtype=str)
    try:
        return np.char.decode(column, "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{where} hold bytes that are no text: expected UTF-8, or whole numbers") from error


def _from_text(name: str, columns: Sequence[np.ndarray], classes: int) -> Labels:
    found, ids = np.unique(np.concatenate(columns), return_inverse=True)
    texts = [str(label) for label in found]
    if classes and classes != len(texts):
        raise DataError(
            f"data '{name}': {len(texts)} different text labels but classes = {classes}; "
            "expected as many, or labels written as numbers from 0"
        )
    if not classes:
        _refuse_unlikely(name, texts, len(ids))
    numbers = [number_of(text) for text in texts]
    if all(number is not None and np.isfinite(number) for number in numbers):
        order = sorted(range(len(texts)), key=lambda place: (numbers[place], texts[place]))
        ids, texts = np.argsort(order)[ids.reshape(-1)], [texts[place] for place in order]
    return Labels(_split(ids, columns), len(texts), tuple(texts))


def _from_numbers(name: str, columns: Sequence[np.ndarray]) -> Labels:
    for column in columns:
        if column.dtype.kind not in "biuf":
            raise DataError(f"data '{name}': labels are of type {column.dtype}; expected whole numbers or text")
        if column.dtype.kind == "f":
            with np.errstate(invalid="ignore", over="ignore"):
                broken = ~np.isfinite(column) | (np.abs(column) >= LARGEST_EXACT)
            _refuse(f"data '{name}'", column, broken, "a class as a whole number or text")
    values = np.concatenate(columns)
    found, ids = np.unique(values, return_inverse=True)
    _refuse_measured(name, values, found)
    names = tuple(name_of(value) for value in found.tolist())
    _refuse_unlikely(name, names, len(ids))
    counted = names == tuple(map(str, range(len(names))))
    return Labels(_split(ids, columns), len(names), () if counted else names)


def _split(ids: np.ndarray, columns: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    ends = np.cumsum([len(column) for column in columns])[:-1]
    return tuple(np.split(ids.reshape(-1).astype(np.int64), ends))


def _refuse_measured(name: str, values: np.ndarray, found: np.ndarray) -> None:
    """Numbers with fractions are classes if they are few, such as grades of 0, 0.5 and 1; else somebody measured."""
    fractions = found[found != np.floor(found)] if found.dtype.kind == "f" else found[:0]
    if len(fractions) and (len(found) > MOST_GRADES or ROWS_A_GRADE * len(found) > len(values)):
        raise DataError(
            f"data '{name}' has label {fractions[0]:g}, one of {len(found)} different numbers in {len(values)} rows: "
            "expected classes and not something measured; choose another column with --label, or write classes as text"
        )


def _refuse_unlikely(name: str, names: Sequence[str], rows: int) -> None:
    """One class is nothing to learn, and a class for every other row is a name or an id."""
    if len(names) == 1 and rows > 1:
        raise DataError(
            f"data '{name}': every row has the label '{_shown(names[0])}'; expected at least two classes; choose "
            "another column with --label, or set classes to their number where others occur elsewhere"
        )
    if len(names) > FEW_CLASSES and ROWS_A_CLASS * len(names) > rows:
        raise DataError(
            f"data '{name}' has {len(names)} different labels in {rows} rows ('{_shown(names[0])}', "
            f"'{_shown(names[-1])}'), as names, ids and quantities do: choose another column with --label, or say with "
            f"--set classes={len(names)} that these are classes"
        )


def _refuse(where: str, column: np.ndarray, broken: np.ndarray, expected: str) -> None:
    if broken.any():
        row = int(np.flatnonzero(broken)[0])
        raise DataError(f"{where}, row {row} has label {_shown(str(column[row]))}: expected {expected}")


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
