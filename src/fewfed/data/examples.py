"""Labelled rows, and a data set as a reader hands it over: training rows, test rows, classes and natural groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fewfed.errors import DataError


@dataclass(frozen=True)
class Examples:
    """Inputs and labels, row by row."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: Tensor) -> Examples:
        return Examples(self.x[index], self.y[index])

    def join(self, other: Examples) -> Examples:
        return Examples(torch.cat([self.x, other.x]), torch.cat([self.y, other.y]))

    def to(self, device: torch.device | str) -> Examples:
        return Examples(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class Dataset:
    """What a reader returns. `groups`: per name ('subject', 'domain', 'client') one integer id per training row."""

    name: str
    train: Examples
    test: Examples
    classes: int
    class_names: tuple[str, ...] = ()
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    group_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    note: str = ""
    """What a table made with this data must say about it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.x.shape[1:])


def checked(dataset: Dataset) -> Dataset:
    """The data set itself, or a `DataError` that names the part, the row and what was expected there."""
    for part, examples in (("train", dataset.train), ("test", dataset.test)):
        x, y = examples.x, examples.y
        if len(x) == 0:
            raise DataError(f"data '{dataset.name}' has no {part} rows: expected at least one")
        if len(x) != len(y):
            raise DataError(
                f"data '{dataset.name}', {part}: {len(x)} inputs but {len(y)} labels; expected as many of each"
            )
        if not torch.is_floating_point(x):
            raise DataError(f"data '{dataset.name}', {part}: inputs are {x.dtype}; expected floating point")
        finite = torch.isfinite(x.flatten(1)).all(1)
        if not bool(finite.all()):
            row = int((~finite).nonzero()[0])
            raise DataError(
                f"data '{dataset.name}', {part} row {row} holds NaN or infinity: expected finite numbers; "
                "clean or drop such rows"
            )
        bad = (y < 0) | (y >= dataset.classes)
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise DataError(
                f"data '{dataset.name}', {part} row {row} has label {int(y[row])}: "
                f"expected 0 to {dataset.classes - 1} ({dataset.classes} classes)"
            )
    if dataset.train.x.shape[1:] != dataset.test.x.shape[1:]:
        raise DataError(
            f"data '{dataset.name}': train inputs have shape {tuple(dataset.train.x.shape[1:])} but test inputs "
            f"{tuple(dataset.test.x.shape[1:])}; expected the same"
        )
    for name, ids in dataset.groups.items():
        if len(ids) != len(dataset.train):
            raise DataError(
                f"data '{dataset.name}': {len(ids)} {name} ids for {len(dataset.train)} rows; expected one a row"
            )
    return dataset
