"""What a split rule is given and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class Pool:
    """Rows to hand out, and the label of every row of the data."""

    labels: np.ndarray
    rows: np.ndarray
    classes: int

    def __len__(self) -> int:
        return len(self.rows)

    def by_class(self) -> list[np.ndarray]:
        """One new array of rows for each class, in the order of the pool."""
        labels = self.labels[self.rows]
        ends = np.cumsum(np.bincount(labels, minlength=self.classes))
        return np.split(self.rows[np.argsort(labels, kind="stable")], ends[:-1])

    def shuffled(self, generator: np.random.Generator) -> Pool:
        return self.only(generator.permutation(self.rows))

    def only(self, rows: np.ndarray) -> Pool:
        return replace(self, rows=rows)


def note_of_unused(sizes: Sequence[int] | np.ndarray, given: Sequence[int] | np.ndarray) -> str:
    """What to say where a class has rows and none of them was given to anybody."""
    unused = [f"{label} ({size} rows)" for label, size in enumerate(sizes) if size and not given[label]]
    return f"classes on no client, so not used: {', '.join(unused)}" if unused else ""


@dataclass(frozen=True, eq=False)
class Flat:
    """The rows of all clients one after another: a million small arrays take more memory than the rows in them."""

    order: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True, eq=False)
class Assigned:
    """Which rows each client got, how many attempts that took, and what a reader of the split should know."""

    clients: list[np.ndarray] | Flat
    attempts: int = 1
    note: str = ""
