"""Labels and group names as users write them, turned into integers from 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fewfed.errors import DataError


@dataclass(frozen=True)
class Labels:
    """Class ids of each part, how many classes there are and what they are called."""

    parts: tuple[np.ndarray, ...]
    classes: int
    names: tuple[str, ...]


def class_ids(name: str, parts: Sequence[np.ndarray], classes: int = 0, names: tuple[str, ...] = ()) -> Labels:
    """Whole numbers are kept as they are; text becomes ids in sorted order. `classes` or `names` fix the number."""
    columns = [_one_per_row(name, part) for part in parts]
    if not sum(map(len, columns)):
        raise DataError(f"data '{name}' is empty: expected at least one labelled row")
    if any(column.dtype.kind in "US" for column in columns):
        return _from_text(name, [column.astype(str) for column in columns], classes)
    ids = tuple(_whole_numbers(name, column) for column in columns)
    declared = classes or len(names)
    return Labels(ids, declared or _count(name, np.concatenate(ids)), names)


def integers_where_possible(cells: Sequence[str]) -> np.ndarray:
    """Text cells as integers if every one of them is, else as they are."""
    try:
        return np.array([int(cell) for cell in cells], dtype=np.int64)
    except ValueError:
        return np.array(cells, dtype=str)


def group_ids(values: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """One integer id a row, and the groups' names in the order of their ids."""
    names, ids = np.unique(values, return_inverse=True)
    return ids.reshape(-1).astype(np.int64), tuple(str(name) for name in names)


def _one_per_row(name: str, raw: np.ndarray) -> np.ndarray:
    column = raw[:, 0] if raw.ndim == 2 and raw.shape[1] == 1 else raw
    if column.ndim != 1:
        raise DataError(f"data '{name}': labels have shape {raw.shape}; expected one label a row")
    return column


def _from_text(name: str, columns: Sequence[np.ndarray], classes: int) -> Labels:
    names, ids = np.unique(np.concatenate(columns), return_inverse=True)
    if classes and classes != len(names):
        raise DataError(
            f"data '{name}': {len(names)} different text labels but classes = {classes}; "
            "expected as many, or labels written as numbers from 0"
        )
    ends = np.cumsum([len(column) for column in columns])[:-1]
    return Labels(tuple(np.split(ids.astype(np.int64), ends)), len(names), tuple(str(label) for label in names))


def _whole_numbers(name: str, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind not in "biuf":
        raise DataError(f"data '{name}': labels are of type {column.dtype}; expected whole numbers or text")
    if column.dtype.kind == "f":
        broken = ~np.isfinite(column) | (column != np.round(column))
        if broken.any():
            row = int(np.flatnonzero(broken)[0])
            raise DataError(
                f"data '{name}', row {row} has label {column[row]}: expected a class as a whole number from 0 or text"
            )
    ids = column.astype(np.int64)
    if (ids < 0).any():
        row = int(np.flatnonzero(ids < 0)[0])
        raise DataError(f"data '{name}', row {row} has label {ids[row]}: expected classes numbered from 0")
    return ids


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
