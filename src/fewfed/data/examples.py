"""Labelled rows, and a data set as a reader hands it over: training rows, test rows, classes and natural groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fewfed.data.arrays import tensor_of
from fewfed.data.raw_inputs import RawInputs
from fewfed.data.reading import Reading
from fewfed.data.scaling import Scaling
from fewfed.errors import DataError


@dataclass(frozen=True)
class Examples:
    """Inputs and labels, row by row: tensors, or arrays and lists of numbers, which become tensors."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if not isinstance(self.x, Tensor):
            object.__setattr__(self, "x", tensor_of(self.x, "inputs", torch.float32))
        if not isinstance(self.y, Tensor):
            object.__setattr__(self, "y", tensor_of(self.y, "labels", torch.int64))

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
    """What a reader returns. `groups`: per name ('subject', 'domain', 'client') one integer id per training row;
    `test_groups`: the same for test rows, where it is known. Segmentation: labels are masks (rows, height, width)."""

    name: str
    train: Examples
    test: Examples
    classes: int
    class_names: tuple[str, ...] = ()
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    group_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    note: str = ""
    """What a table made with this data must say about it."""
    task: Literal["classification", "segmentation"] = "classification"
    test_groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    inputs: RawInputs | None = None
    """What an input is made from in the user's files; None where nobody could make one from a new file."""
    scaling: Scaling | None = None
    """Constants that the reader knows for scaling inputs: published, or of all training rows."""
    is_scaled: bool = False
    """Whether they have been applied to the inputs."""
    missing: bool = False
    """Whether NaN stands in inputs where a value is missing, to be filled in where inputs are scaled."""
    reading: Reading | None = None
    """How the user's own files were read; None where they are not."""
    places: np.ndarray | None = None
    """Of every training row its number, from 0, in the file it was read from, where it was: rows are drawn for the test
    part and left out for what they lack, and whoever speaks of single rows counts those of the file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.train.x.shape[1:])

    @property
    def split_labels(self) -> np.ndarray:
        """The class of every training row as a split sees it: masks have none, so all rows are alike."""
        if self.task == "segmentation":
            return np.zeros(len(self.train), np.int64)
        labels: np.ndarray = self.train.y.numpy()
        return labels

    @property
    def split_names(self) -> tuple[str, ...]:
        """What the classes of `split_labels` are called."""
        if self.task == "segmentation":
            return ("images",)
        return self.class_names or tuple(str(number) for number in range(self.classes))

    def with_inputs(self, train: Tensor, test: Tensor) -> Dataset:
        """The same rows with other inputs."""
        return replace(self, train=Examples(train, self.train.y), test=Examples(test, self.test.y))

    def group_name(self, grouping: str, number: int) -> str:
        """What a group is called, or its number."""
        names = self.group_names.get(grouping, ())
        return names[number] if number < len(names) else str(number)


def checked(dataset: Dataset) -> Dataset:
    """The data set itself, or a `DataError` that names the part, the row and what was expected there."""
    _check_kinds(dataset)
    for part, examples in (("train", dataset.train), ("test", dataset.test)):
        where = f"data '{dataset.name}', {part}"
        if examples.x.ndim and len(examples.x) == 0:
            raise DataError(f"data '{dataset.name}' has no {part} rows: expected at least one")
        _check_inputs(examples.x, where, dataset.missing)
        _check_labels(examples, dataset, where)
    if dataset.train.x.shape[1:] != dataset.test.x.shape[1:]:
        raise DataError(
            f"data '{dataset.name}': train inputs have shape {tuple(dataset.train.x.shape[1:])} but test inputs "
            f"{tuple(dataset.test.x.shape[1:])}; expected the same"
        )
    if dataset.places is not None and len(dataset.places) != len(dataset.train):
        raise DataError(
            f"data '{dataset.name}': {len(dataset.places)} places for {len(dataset.train)} rows; expected one a row"
        )
    for groups, examples in ((dataset.groups, dataset.train), (dataset.test_groups, dataset.test)):
        for name, ids in groups.items():
            if len(ids) != len(examples):
                raise DataError(
                    f"data '{dataset.name}': {len(ids)} {name} ids for {len(examples)} rows; expected one a row"
                )
    return dataset


def _check_kinds(dataset: Dataset) -> None:
    """Raise where a part of a data set is something else than it is declared to be: users make them by hand."""
    if not isinstance(dataset, Dataset):
        raise DataError(f"data is a {type(dataset).__name__}: expected Dataset(name, train, test, classes)")
    if not isinstance(dataset.name, str) or not dataset.name:
        raise DataError(f"the name of a data set is {dataset.name!r:.60}: expected a text that is not empty")
    where = f"data '{dataset.name}'"
    for part in ("train", "test"):
        if not isinstance(getattr(dataset, part), Examples):
            kind = type(getattr(dataset, part)).__name__
            raise DataError(f"{where}: {part} is a {kind}: expected Examples(x, y)")
    if not isinstance(dataset.classes, (int, np.integer)) or isinstance(dataset.classes, bool) or dataset.classes < 1:
        raise DataError(f"{where}: classes = {dataset.classes!r:.60}: expected how many there are, a whole number")
    for groups in (dataset.groups, dataset.test_groups):
        if not isinstance(groups, Mapping):
            raise DataError(f"{where}: groups are a {type(groups).__name__}: expected ids by the name of a grouping")
        for name, ids in groups.items():
            if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype.kind not in "iu":
                raise DataError(
                    f"{where}: {name} ids are no array of whole numbers: expected one number a row, counted from 0, "
                    "and what the groups are called in group_names"
                )


def _check_inputs(x: Tensor, where: str, missing: bool) -> None:
    if not torch.is_floating_point(x):
        raise DataError(f"{where}: inputs are {x.dtype}; expected floating point")
    if x.ndim < 2 or x.numel() == 0:
        raise DataError(f"{where}: inputs have shape {tuple(x.shape)}; expected at least one number in every row")
    flat = x.flatten(1)
    finite = (torch.isfinite(flat) | torch.isnan(flat) if missing else torch.isfinite(flat)).all(1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise DataError(f"{where} row {row} holds NaN or infinity: expected finite numbers; clean or drop such rows")


def _check_labels(examples: Examples, dataset: Dataset, where: str) -> None:
    x, y = examples.x, examples.y
    if y.ndim == 0 or y.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        raise DataError(f"{where}: labels are {y.dtype} of shape {tuple(y.shape)}; expected whole numbers, one a row")
    if len(x) != len(y):
        raise DataError(f"{where}: {len(x)} inputs but {len(y)} labels; expected as many of each")
    expected = tuple(x.shape[2:]) if dataset.task == "segmentation" else ()
    if tuple(y.shape[1:]) != expected:
        raise DataError(
            f"{where}: labels have shape {tuple(y.shape)} for inputs of {tuple(x.shape)}; "
            f"expected {(len(x), *expected)} for {dataset.task}"
        )
    bad = (y < 0) | (y.long() >= dataset.classes)
    if bool(bad.any()):
        place = tuple(bad.nonzero()[0].tolist())
        raise DataError(
            f"{where} row {place[0]} has label {int(y[place])}: "
            f"expected 0 to {dataset.classes - 1} ({dataset.classes} classes)"
        )
