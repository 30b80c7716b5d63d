"""Segmentation: a class for every pixel, learned with cross-entropy and Dice, scored with Dice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from fewfed.losses import one_hot
from fewfed.task import Score

SMOOTH = 1e-5


class DiceScore(Score):
    """`correct`: the Dice of each class summed over images; `total`: how many images. Class 0 is the background."""

    measures: ClassVar[tuple[str, ...]] = ("accuracy", "dice", "dice_with_background", "loss")

    @property
    def accuracy(self) -> float:
        """Mean Dice of the foreground classes: the background is most of an image and right for free."""
        return _mean(self.per_class[1:])

    @property
    def mean_loss(self) -> float:
        return self.loss / float(self.total[0])

    def matched(self, counts: Tensor) -> float:
        """The plain Dice: images have no label proportions to match."""
        return self.accuracy

    @property
    def compared(self) -> dict[str, float]:
        return {"accuracy": self.accuracy, "dice_with_background": _mean(self.per_class)}

    def metrics(self) -> dict[str, Any]:
        return super().metrics() | self.compared | {"dice": self.accuracy}

    def overall(self) -> dict[str, float]:
        return super().overall() | self.compared | {"dice": self.accuracy}

    def each_class(self) -> list[dict[str, Any]]:
        return [{"rows": rows, "dice": mean} for rows, mean in zip(self.total.tolist(), self.per_class, strict=True)]


@dataclass(frozen=True)
class Segmentation:
    """A class of `outputs` for every pixel, 0 being the background.

    The loss is (cross-entropy + soft Dice)/2, as FedFA trains its U-Net. Rows have no class label of their own, so
    `classes` is 0 and methods that need one refuse.
    """

    outputs: int = 2
    classes: ClassVar[int] = 0
    score_type: ClassVar[type[Score]] = DiceScore

    def blank_labels(self, rows: int, shape: tuple[int, ...]) -> Tensor:
        return torch.zeros(rows, *shape[1:], dtype=torch.long)

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return self.soft_loss(output, self.soft_labels(y))

    def soft_labels(self, y: Tensor) -> Tensor:
        """One-hot masks, classes on the axis where the network has them."""
        return one_hot(y, self.outputs).movedim(-1, 1)

    def soft_loss(self, output: Tensor, target: Tensor) -> Tensor:
        log_probability = log_softmax(output, 1)
        cross_entropy = -(target * log_probability).sum(1).mean()
        return (cross_entropy + soft_dice_loss(log_probability.exp(), target)) / 2

    def score(self, output: Tensor, y: Tensor) -> Score:
        predicted, truth = one_hot(output.argmax(1), self.outputs), one_hot(y, self.outputs)
        return DiceScore(
            correct=dice(predicted.flatten(1, -2), truth.flatten(1, -2)).sum(0),
            total=torch.full((self.outputs,), len(y)),
            loss=float(self.loss(output, y)) * len(y),
        )


def soft_dice_loss(probability: Tensor, target: Tensor) -> Tensor:
    """1 − the mean over classes of (2·Σpt + s)/(Σp + Σt + s), sums over all pixels of the batch; classes on axis 1."""
    pixels = (0, *range(2, probability.dim()))
    shared = (probability * target).sum(pixels)
    sizes = probability.sum(pixels) + target.sum(pixels)
    return 1 - ((2 * shared + SMOOTH) / (sizes + SMOOTH)).mean()


def dice(predicted: Tensor, truth: Tensor) -> Tensor:
    """2·|A∩B|/(|A| + |B|) of every image and class, from (images, pixels, classes) of zeros and ones.

    1 where neither has the class: nothing was asked for and nothing was found.
    """
    shared = (predicted * truth).sum(1).double()
    sizes = predicted.sum(1).double() + truth.sum(1).double()
    return torch.where(sizes > 0, 2 * shared / sizes.clamp(min=1), torch.ones_like(sizes))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
