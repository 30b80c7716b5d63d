"""Which column of a table plays which part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fewfed.data.readers.options import DataOptions
from fewfed.errors import DataError, did_you_mean

LABELS = ("label", "y")
GROUPS = ("client", "subject", "domain")
MOST_LISTED = 50
SHOWN = 80
"""Columns that an error lists, and letters of each."""


@dataclass(frozen=True)
class Roles:
    """The label column, the group columns by the name of the group, and the columns left for inputs."""

    label: str
    groups: tuple[tuple[str, str], ...]
    inputs: tuple[str, ...]


def roles(where: str, columns: Sequence[str], options: DataOptions) -> Roles:
    seen: set[str] = set()
    for column in columns:
        if column in seen:
            raise DataError(f"{where} has two columns '{column[:SHOWN]}': expected every name once")
        seen.add(column)
    label = _label(where, columns, options.label)
    groups = _groups(where, columns, options.client_column)
    taken = {label, *(column for _, column in groups)}
    inputs = tuple(column for column in columns if column not in taken)
    if not inputs:
        raise DataError(f"{where} has no input columns beside '{label[:SHOWN]}': expected at least one")
    return Roles(label, groups, inputs)


def _label(where: str, columns: Sequence[str], wanted: str) -> str:
    if wanted:
        return _existing(where, columns, wanted, "label")
    for candidate in LABELS:
        if candidate in columns:
            return candidate
    raise DataError(
        f"{where} has no column 'label' or 'y' (its columns are {_listed(columns)}): set label to the right one"
    )


def _groups(where: str, columns: Sequence[str], wanted: str) -> tuple[tuple[str, str], ...]:
    if wanted:
        return (("client", _existing(where, columns, wanted, "client_column")),)
    return tuple((name, name) for name in GROUPS if name in columns)


def _existing(where: str, columns: Sequence[str], wanted: str, option: str) -> str:
    if wanted not in columns:
        near = [column[:SHOWN] for column in columns[:MOST_LISTED]]
        raise DataError(f"{where}, option {option}: {did_you_mean('column', wanted[:SHOWN], near)}")
    return wanted


def _listed(columns: Sequence[str]) -> str:
    more = ["..."] if len(columns) > MOST_LISTED else []
    return ", ".join([column[:SHOWN] for column in columns[:MOST_LISTED]] + more)
