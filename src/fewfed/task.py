"""What is predicted: the loss of a batch and the score of a test part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


@dataclass(frozen=True)
class Score:
    """Counts that add up over parts of a test set: per class how many were right and how many there were."""

    correct: Tensor
    total: Tensor
    loss: float
    """Summed over rows."""

    def __add__(self, other: Score) -> Score:
        return Score(self.correct + other.correct, self.total + other.total, self.loss + other.loss)

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


class Task(Protocol):
    """What a method may ask about the task at hand."""

    @property
    def classes(self) -> int:
        """Number of classes; 0 where labels are not classes."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """Mean loss of a batch."""

    def score(self, output: Tensor, y: Tensor) -> Score:
        """Score of a part of a test set."""


@dataclass(frozen=True)
class Classification:
    """One label of `classes` a row, cross-entropy."""

    classes: int

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(output, y)

    def score(self, output: Tensor, y: Tensor) -> Score:
        right = (output.argmax(1) == y).long()
        return Score(
            correct=torch.zeros(self.classes, dtype=torch.long).scatter_add_(0, y, right),
            total=torch.bincount(y, minlength=self.classes),
            loss=float(cross_entropy(output, y, reduction="sum").double()),
        )


@dataclass(frozen=True)
class Regression:
    """Real targets, half the squared error. A row counts as right when it is within `tolerance`."""

    tolerance: float = 0.5
    classes: int = 0

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return (output.squeeze(-1) - y).square().mean() / 2

    def score(self, output: Tensor, y: Tensor) -> Score:
        error = output.squeeze(-1) - y
        return Score(
            correct=(error.abs() <= self.tolerance).sum().reshape(1),
            total=torch.tensor([len(y)]),
            loss=float((error.double().square() / 2).sum()),
        )
