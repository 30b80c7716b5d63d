"""A table as readers see it, whatever file it lies in: named columns of cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from fewfed.data.readers.cells import missing_in

CellKind = Literal["text", "numbers", "lists", "pictures", "other"]
SHOWN = 80
"""Letters of a column's name, or of a cell, that an error repeats."""


@dataclass(frozen=True)
class TextCells:
    """Cells as they are written."""

    cells: Sequence[str]
    decimal_comma: bool = False
    """Whether 1,5 may stand for 1.5."""

    @cached_property
    def missing(self) -> np.ndarray:
        return missing_in(self.cells)


@dataclass(frozen=True)
class NumberCells:
    """Numbers as they are stored; what stands where one is missing means nothing."""

    values: np.ndarray
    missing: np.ndarray


Cells = TextCells | NumberCells


class Table(Protocol):
    """Columns by name, each turned into cells when it is asked for."""

    @property
    def where(self) -> str:
        """What to call it in an error."""
        ...

    @property
    def stored(self) -> int:
        """Bytes it is stored in."""
        ...

    @property
    def names(self) -> Sequence[str]: ...

    @property
    def rows(self) -> int: ...

    @property
    def separator(self) -> str: ...

    def kind(self, name: str) -> CellKind:
        """What a column holds, without reading it."""
        ...

    def column(self, name: str) -> Cells:
        """A column of text or numbers."""
        ...

    def lists(self, name: str) -> np.ndarray:
        """A column of equally long lists of numbers, or of numbers, rows first."""
        ...

    def pictures(self, name: str) -> Sequence[bytes]:
        """A column of encoded pictures."""
        ...

    def class_names(self, name: str) -> tuple[str, ...]:
        """What the classes of a column of labels are called, where the table says so."""
        ...


def at(table: Table, column: str) -> str:
    """One of a table's columns, in an error."""
    return f"{table.where}, column '{column[:SHOWN]}'"
