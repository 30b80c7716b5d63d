"""Classification: one label a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, nll_loss

from fewfed.losses import one_hot, soft_cross_entropy
from fewfed.task import Score
from fewfed.tasks.class_score import ClassScore


@dataclass(frozen=True)
class Classification:
    """One label of `classes` a row, cross-entropy."""

    classes: int
    score_type: ClassVar[type[Score]] = ClassScore

    @property
    def outputs(self) -> int:
        return self.classes

    def blank_labels(self, rows: int, shape: tuple[int, ...]) -> Tensor:
        return torch.arange(rows) % self.classes

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(output, y)

    def soft_labels(self, y: Tensor) -> Tensor:
        return one_hot(y, self.classes)

    def soft_loss(self, output: Tensor, target: Tensor) -> Tensor:
        return soft_cross_entropy(output, target)

    def score(self, output: Tensor, y: Tensor) -> Score:
        output = output.detach()
        log_probability = log_softmax(output, 1)
        loss = float(nll_loss(log_probability, y, reduction="sum").double())
        return ClassScore.of(y, output.argmax(1), log_probability.amax(1).exp(), loss, self.classes)
