"""What is predicted: the loss of a batch and the score of a test part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Score:
    """Sums that add up over parts of a test set: per class how much was right and out of how many.

    A task with more to count has a subclass with more fields: tensors and numbers are added, written and read back
    without its doing.
    """

    measures: ClassVar[tuple[str, ...]] = ("accuracy", "loss")
    """The metrics (`fewfed.metric`) that a run may be judged by."""
    needs_all_rows: ClassVar[bool] = False
    """Whether `of_all_rows` has anything to say."""

    correct: Tensor
    total: Tensor
    loss: float
    """Summed over rows."""
    groups: Mapping[str, Self] = field(default_factory=dict)
    """The scores of named groups of the test rows, where there are any."""

    def __add__(self, other: Self) -> Self:
        names = dict.fromkeys((*self.groups, *other.groups))
        both = {
            name: self.groups[name] + other.groups[name]
            if name in self.groups and name in other.groups
            else self.groups.get(name) or other.groups[name]
            for name in names
        }
        sums = {name: value + getattr(other, name) for name, value in self._sums().items()}
        return type(self)(**sums, groups=both)

    def as_json(self) -> dict[str, Any]:
        sums = {name: value.tolist() if isinstance(value, Tensor) else value for name, value in self._sums().items()}
        return {**sums, "groups": {name: part.as_json() for name, part in self.groups.items()}}

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Self:
        """The score that `as_json` wrote, bit for bit."""
        sums: dict[str, Any] = {
            name: _tensor(value) if isinstance(value, list) else value
            for name, value in recorded.items()
            if name != "groups"
        }
        return cls(**sums, groups={name: cls.from_json(part) for name, part in recorded["groups"].items()})

    @classmethod
    def of_all_rows(cls, output: Tensor, y: Tensor) -> dict[str, Any]:  # noqa: ARG003
        """What is no sum over parts of the rows, from what the model says of all of them; ready for JSON."""
        return {}

    def metrics(self) -> dict[str, Any]:
        """What a round's record says about this score, ready for JSON."""
        rates = [None if math.isnan(rate) else rate for rate in self.per_class]
        found: dict[str, Any] = {"accuracy": self.accuracy, "loss": self.mean_loss, "per_class": rates}
        if self.groups:
            parts = {name: part.compared for name, part in self.groups.items()}
            found["per_group"] = {name: part["accuracy"] for name, part in parts.items()}
            found |= {
                f"{name}_groups": sum(part[name] for part in parts.values()) / len(parts) for name in self.compared
            }
        return found

    def overall(self) -> dict[str, float]:
        """Every metric that is a sum over parts of the rows, by name."""
        return {"accuracy": self.accuracy, "loss": self.mean_loss}

    def each_class(self) -> list[dict[str, Any]]:
        """A row of a table for every class; none where labels are not classes."""
        return []

    def tables(self) -> dict[str, Any]:
        """Further tables that the score comes to, by name, ready for JSON."""
        return {}

    @property
    def compared(self) -> dict[str, float]:
        """The numbers that tables compare, by name; their means over groups are reported too."""
        return {"accuracy": self.accuracy}

    @property
    def accuracy(self) -> float:
        """Fraction of all rows that were right."""
        return int(self.correct.sum()) / int(self.total.sum())

    @property
    def per_class(self) -> list[float]:
        """Fraction right for each class; NaN for a class the test set does not have."""
        return [float(c) for c in self.correct.double() / self.total.double()]

    @property
    def mean_loss(self) -> float:
        return self.loss / float(self.total.sum())

    def matched(self, counts: Tensor) -> float:
        """Expected accuracy on a test set with the label proportions of `counts`."""
        present = self.total > 0
        share = torch.where(present, counts.double(), torch.zeros(())).double()
        rate = torch.where(present, self.correct.double() / self.total.clamp(min=1).double(), torch.zeros(()).double())
        return float((share * rate).sum() / share.sum())

    def _sums(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.name != "groups"}


def _tensor(values: list[Any]) -> Tensor:
    """Sums are whole numbers or doubles; a plain `torch.tensor` would make the latter single."""
    first = values
    while isinstance(first, list):
        first = first[0]
    return torch.tensor(values, dtype=torch.float64 if isinstance(first, float) else torch.long)


class Task(Protocol):
    """What a method may ask about the task at hand."""

    @property
    def classes(self) -> int:
        """Number of classes a row may have; 0 where labels are not classes."""

    @property
    def outputs(self) -> int:
        """Number of categories the network scores, for each row or pixel; 0 where it predicts something else."""

    @property
    def score_type(self) -> type[Score]:
        """What `score` returns."""

    def blank_labels(self, rows: int, shape: tuple[int, ...]) -> Tensor:
        """Labels of some rows with inputs of that shape, for trying a method out without data."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean loss of a batch."""

    def soft_labels(self, y: Tensor) -> Tensor:
        """Labels in a form that can be averaged."""

    def soft_loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean loss of a batch against averaged labels; the same as `loss` against those of single rows."""

    def score(self, output: Tensor, y: Tensor) -> Score:
        """Score of a part of a test set."""
