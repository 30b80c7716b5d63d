"""A user's own .npz file: `x`, `y`, perhaps `x_test`, `y_test`, and `site` or the like for whose row it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewfed.data.raw_inputs import RawInputs
from fewfed.data.readers.archive import arrays_in
from fewfed.data.readers.inputs import as_inputs
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.own_rows import Part, Rows
from fewfed.data.readers.roles import GROUPS, SITE
from fewfed.data.reading import LeftOut, Reading
from fewfed.errors import DataError, did_you_mean

INPUTS, LABELS, TEST = "x", "y", "_test"


@dataclass(frozen=True)
class Arrays:
    """Arrays of one part, as they are stored."""

    path: Path
    x: np.ndarray
    y: np.ndarray
    groups: Mapping[str, np.ndarray]
    marks: np.ndarray | None = None
    """Which rows are for testing."""


def contents(path: Path, options: DataOptions) -> list[Arrays]:
    """The training part, and the test part where there is one."""
    arrays = arrays_in(path, options.limits)
    labels = options.label or LABELS
    _check_names(path, arrays, labels, options)
    groups = {SITE: arrays[options.site]} if options.site else {}
    groups |= {name: arrays[name] for name in GROUPS if name in arrays and name != options.site and name not in groups}
    marks = _marks(path, options.test_column, arrays) if options.test_column else None
    found = [Arrays(path, arrays[INPUTS], _labels(path, arrays, labels), groups, marks)]
    if INPUTS + TEST in arrays:
        found.append(Arrays(path, arrays[INPUTS + TEST], _labels(path, arrays, labels + TEST), {}))
    return found


def rows_of(name: str, parts: Sequence[Arrays], options: DataOptions) -> Rows:
    made = [Part(as_inputs(name, part.x), part.y, part.groups, part.marks) for part in parts]
    reading = Reading(
        data=name,
        label=options.label or LABELS,
        site=options.site or next(iter(parts[0].groups), ""),
        left_out=tuple(LeftOut(array, "asked") for array in options.ignore),
    )
    return Rows(made, RawInputs("array"), reading)


def files(path: Path, options: DataOptions) -> list[Path]:
    """What `contents` reads."""
    return [path]


def _check_names(path: Path, arrays: Mapping[str, np.ndarray], labels: str, options: DataOptions) -> None:
    for option in ("label", "site", "test_column"):
        wanted = getattr(options, option)
        if wanted and wanted not in arrays:
            raise DataError(f"{path}, option {option}: {did_you_mean('array', wanted, list(arrays)[:50])}")
    for needed in (INPUTS, labels):
        if needed not in arrays:
            found = ", ".join(list(arrays)[:10]) or "nothing"
            raise DataError(
                f"{path} has no array '{needed}': expected x and {labels}, found {found}; --label NAME says which one "
                "holds the labels"
            )
    known = [INPUTS, labels, INPUTS + TEST, labels + TEST, *GROUPS, options.site, options.test_column, *options.ignore]
    for name in arrays:
        if name not in known:
            told = did_you_mean("array", name, filter(None, known))
            does = f"one that is not used is left out with --ignore '{name[:80]}'"
            if arrays[name].dtype == bool:
                does = f"one that marks rows to test on is named with --test-column '{name[:80]}', {does}"
            raise DataError(f"{path}: {told.rstrip('?')}; {does}")
    if (INPUTS + TEST in arrays) != (labels + TEST in arrays):
        raise DataError(f"{path} has only one of x_test and {labels}_test: expected both or neither")


def _labels(path: Path, arrays: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if arrays[name].ndim == 0 or len(arrays[name]) == 0:
        raise DataError(f"{path}: array '{name}' is empty; expected one label a row")
    return arrays[name]


def _marks(path: Path, name: str, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    marks = arrays[name]
    if marks.dtype.kind not in "biu" or bool(((marks != 0) & (marks != 1)).any()):
        raise DataError(
            f"{path}: array '{name}' is of type {marks.dtype}; expected true or 1 for rows of the test part"
        )
    return marks.astype(bool)
