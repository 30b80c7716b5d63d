"""Which column of a table plays which part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fewfed.data.readers.cells import numbers_in
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.table import SHOWN, Cells, Table, TextCells
from fewfed.data.reading import LeftOut
from fewfed.errors import DataError, did_you_mean

LABELS = ("label", "y")
SITE = "site"
GROUPS = (SITE, "client", "subject", "domain")
"""What groups of rows may be called, the one that clients are first."""
MOST_LISTED = 50
"""Columns that an error lists."""
_UNNAMED = re.compile(r"Unnamed: \d+(\.\d+)?|__index_level_\d+__")
"""What pandas calls a column, or an index that it wrote, without a name."""


@dataclass(frozen=True)
class Roles:
    """The label column, the group columns by the name of the group, the column that marks test rows, and the rest."""

    label: str
    groups: tuple[tuple[str, str], ...]
    test: str
    inputs: tuple[str, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns in which every row must have a value, whatever is done about missing inputs."""
        return (self.label, *(column for _, column in self.groups[:1]))


def roles(table: Table, options: DataOptions) -> Roles:
    where, columns = table.where, table.names
    refuse_twice(where, columns)
    for name in options.ignore:
        _existing(where, columns, name, "ignore")
    kept = [column for column in columns if column not in options.ignore]
    label = _label(where, kept, options.label)
    groups = _groups(where, kept, options.site, label)
    test = _existing(where, kept, options.test_column, "test_column") if options.test_column else ""
    taken = [label, *(column for _, column in groups), *filter(None, [test])]
    twice = next((column for column in taken if taken.count(column) > 1), "")
    if twice:
        raise DataError(
            f"{where}: column '{twice[:SHOWN]}' is asked to be two of label, site and test_column: expected one each"
        )
    left_out = [LeftOut(name, "asked") for name in options.ignore]
    left_out += [LeftOut(column, "group") for _, column in groups[1:]]
    inputs = []
    for column in kept:
        if column in taken:
            continue
        reason = without_name(table, column) if _UNNAMED.fullmatch(column) else None
        if reason:
            left_out.append(reason)
        else:
            inputs.append(column)
    if not inputs:
        raise DataError(f"{where} has no input columns beside '{label[:SHOWN]}': expected at least one")
    return Roles(label, groups, test, tuple(inputs), tuple(left_out))


def refuse_twice(where: str, columns: Sequence[str]) -> None:
    seen: set[str] = set()
    for column in columns:
        if column in seen:
            raise DataError(f"{where} has two columns '{column[:SHOWN]}': expected every name once")
        seen.add(column)


def without_name(table: Table, column: str) -> LeftOut | None:
    """Why a column without a name is left out: a program counted rows in it, or nothing stands in it.

    Raise where it holds anything else, since nobody can say what it is.
    """
    if table.kind(column) in ("text", "numbers"):
        cells = table.column(column)
        if bool(cells.missing.all()):
            return LeftOut(column, "empty")
        if counts_rows(cells):
            return LeftOut(column, "index")
    raise DataError(
        f"{table.where} has a column without a name (called '{column}' here) that does not count its rows: name it in "
        f"the header, or leave it out with --ignore '{column}'"
    )


def counts_rows(cells: Cells) -> bool:
    """Whether a column counts 0, 1, 2 ... or 1, 2, 3 ..., and so says nothing about its rows."""
    numbers = numbers_in(cells.cells) if isinstance(cells, TextCells) else cells.values
    if numbers is None or numbers.dtype.kind == "b" or len(numbers) < 3 or bool(cells.missing.any()):
        return False
    return any(np.array_equal(numbers, np.arange(first, first + len(numbers))) for first in (0, 1))


def _label(where: str, columns: Sequence[str], wanted: str) -> str:
    if wanted:
        return _existing(where, columns, wanted, "label")
    for candidate in LABELS:
        if candidate in columns:
            return candidate
    raise DataError(
        f"{where} has no column 'label' or 'y' (its columns are {_listed(columns)}): say which one holds the labels "
        "with --label NAME"
    )


def _groups(where: str, columns: Sequence[str], wanted: str, label: str) -> tuple[tuple[str, str], ...]:
    known = tuple((name, name) for name in GROUPS if name in columns and name not in (label, wanted))
    if not wanted:
        return known
    site = (SITE, _existing(where, columns, wanted, "site"))
    return (site, *(group for group in known if group[0] != SITE))


def _existing(where: str, columns: Sequence[str], wanted: str, option: str) -> str:
    if wanted not in columns:
        near = [column[:SHOWN] for column in columns[:MOST_LISTED]]
        raise DataError(f"{where}, option {option}: {did_you_mean('column', wanted[:SHOWN], near)}")
    return wanted


def _listed(columns: Sequence[str]) -> str:
    more = ["..."] if len(columns) > MOST_LISTED else []
    return ", ".join([column[:SHOWN] for column in columns[:MOST_LISTED]] + more)
