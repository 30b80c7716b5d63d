"""Regression: a real number a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewfed.task import Score


@dataclass(frozen=True)
class Regression:
    """Real targets, half the squared error. A row counts as right when it is within `tolerance`."""

    tolerance: float = 0.5
    classes: int = 0
    outputs: int = 0
    score_type: ClassVar[type[Score]] = Score

    def blank_labels(self, rows: int, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(rows)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return (output.squeeze(-1) - y).square().mean() / 2

    def soft_labels(self, y: Tensor) -> Tensor:
        return y

    def soft_loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.loss(output, target)

    def score(self, output: Tensor, y: Tensor) -> Score:
        error = output.squeeze(-1) - y
        return Score(
            correct=(error.abs() <= self.tolerance).sum().reshape(1),
            total=torch.tensor([len(y)]),
            loss=float((error.double().square() / 2).sum()),
        )
