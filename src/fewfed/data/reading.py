"""What a reader found in a user's own files and what it made of it: data, to be told before anything is trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fewfed.data.raw_inputs import InputColumn

Reason = Literal["asked", "index", "empty", "group", "beside pictures", "not in training"]
"""Why a column is no input: the user asked for it; it counts rows; nothing stands in it; it says whose a row is; there
are pictures; the training rows have no such column."""
TestPart = Literal["fraction", "fraction of each site", "column", "file", "part"]
"""Where the test part comes from: held out; held out within each site; marked in a column; another file; the data's
own."""


MANY = 1000
"""Classes that are all listed, whether they have rows or not."""


@dataclass(frozen=True)
class Count:
    """Rows of one class or one site."""

    name: str
    train: int
    test: int


@dataclass(frozen=True)
class LeftOut:
    """A column that is neither label nor input."""

    name: str
    why: Reason


@dataclass(frozen=True)
class MissingCells:
    """A column in which cells are missing, and how many."""

    column: str
    cells: int


@dataclass(frozen=True)
class Reading:
    """How a user's own files were read."""

    data: str
    label: str = ""
    """The column of labels; empty where folders are the classes."""
    site: str = ""
    """The column, or what else, that says whose a row is; empty where nothing does."""
    columns: tuple[InputColumn, ...] = ()
    counting: tuple[str, ...] = ()
    """Input columns that count rows, which are hardly ever measurements."""
    left_out: tuple[LeftOut, ...] = ()
    missing: tuple[MissingCells, ...] = ()
    filled: bool = False
    """Whether missing inputs are filled in; otherwise their rows are dropped."""
    dropped: int = 0
    """Rows that are not used because something is missing in them."""
    unknown: tuple[MissingCells, ...] = ()
    """Cells of the test part with a category that no training row has."""
    separator: str = ","
    test_part: TestPart = "fraction"
    test_from: str = ""
    """The column that marks test rows, or the file they come from."""
    fraction: float = 0.0
    """The share of rows held out for testing, where that is how the test part was made."""
    rows: int = 0
    test_rows: int = 0
    classes: tuple[Count, ...] = ()
    grouping: str = ""
    """The split whose clients are the sites; empty where there are none."""
    sites: tuple[Count, ...] = ()

    def counted(
        self, classes: tuple[np.ndarray, np.ndarray, Sequence[str]], grouping: str, sites: tuple[Count, ...]
    ) -> Reading:
        """The same with its rows counted. `classes`: ids of training and test rows, and names."""
        train, test, names = classes
        return dataclasses.replace(
            self,
            rows=len(train),
            test_rows=len(test),
            classes=counts(train, test, names) if train.ndim == 1 else (),
            grouping=grouping,
            sites=sites,
        )

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def counts(train: np.ndarray, test: np.ndarray | None, names: Sequence[str]) -> tuple[Count, ...]:
    """Rows of each id from 0 in both parts; none in the test part where nobody knows whose its rows are. Of very many
    ids, those alone that have rows."""
    trained = np.bincount(train, minlength=len(names))
    tested = np.zeros(len(trained), np.int64) if test is None else np.bincount(test, minlength=len(names))
    shown = range(len(names)) if len(names) <= MANY else np.flatnonzero(trained + tested).tolist()
    return tuple(Count(names[one], int(trained[one]), int(tested[one])) for one in shown)
