"""The score of a classification: what accuracy, recall, precision, F1 and calibration are computed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fewfed.task import Score
from fewfed.tasks import auc

BINS = 15
"""Equal ranges of the largest probability, by which calibration is judged."""
MOST_CONFUSED = 200
"""With more classes than this no confusion matrix is made: it would be larger than all other results together."""

_UNIT = 1 << 30
"""Probabilities are summed as whole multiples of 1/`_UNIT`, so that sums do not depend on how rows are parted."""


@dataclass(frozen=True, kw_only=True)
class ClassScore(Score):
    """`correct` and `total` by the true class."""

    measures: ClassVar[tuple[str, ...]] = (
        "accuracy", "balanced_accuracy", "macro_f1", "auc", "calibration_error", "loss",
    )  # fmt: skip
    needs_all_rows: ClassVar[bool] = True

    predicted: Tensor
    """How often each class was predicted."""
    bins: Tensor
    """Three rows of `BINS` numbers: how many rows of the test set in each bin were wrong, how many right, and the sum
    of their largest probabilities."""

    @classmethod
    def of(cls, labels: Tensor, predicted: Tensor, probability: Tensor, loss: float, classes: int) -> ClassScore:
        """From each row's class, the class it is held for and how likely that seems, and the loss of all rows.

        What is no number counts as a probability of 0. Arrays, because for the few rows that are scored at once they
        take less than half the time of tensors.
        """
        y, said, sure = labels.numpy(), predicted.numpy(), np.fmax(probability.double().numpy(), 0.0)
        right = y == said
        place = np.ceil(sure * BINS).clip(1, BINS).astype(np.int64)
        bins = np.empty((3, BINS), np.int64)
        bins[:2] = np.bincount(place + BINS * right, minlength=2 * BINS + 1)[1:].reshape(2, BINS)
        # Doubles hold sums of whole numbers exactly, for millions of rows at once.
        bins[2] = np.bincount(place, weights=np.rint(sure * _UNIT), minlength=BINS + 1)[1:]
        return cls(
            correct=torch.from_numpy(np.bincount(y[right], minlength=classes)),
            total=torch.from_numpy(np.bincount(y, minlength=classes)),
            loss=loss,
            predicted=torch.from_numpy(np.bincount(said, minlength=classes)),
            bins=torch.from_numpy(bins),
        )

    @classmethod
    def of_all_rows(cls, output: Tensor, y: Tensor) -> dict[str, Any]:
        """AUC, overall and of each class, and the confusion matrix: a row a true class, a column a predicted one."""
        classes = output.shape[1]
        each = auc.areas(output, y)
        confusion = torch.bincount(y * classes + output.argmax(1), minlength=classes**2).view(classes, classes)
        return {
            "auc": auc.overall(each),
            "auc_per_class": each,
            "confusion": confusion.tolist() if classes <= MOST_CONFUSED else None,
        }

    def metrics(self) -> dict[str, Any]:
        return super().metrics() | self._beyond_accuracy()

    def overall(self) -> dict[str, float]:
        return super().overall() | self._beyond_accuracy()

    def each_class(self) -> list[dict[str, Any]]:
        """Blanks: recall of a class that no row has, precision of one that is never predicted, F1 of one that is
        neither."""
        return [
            {
                "rows": rows,
                "precision": right / said if said else None,
                "recall": right / rows if rows else None,
                "f1": 2 * right / (rows + said) if rows + said else None,
            }
            for right, rows, said in self._each()
        ]

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall over the classes that the rows have."""
        recalls = [right / rows for right, rows, _ in self._each() if rows]
        return sum(recalls) / len(recalls)

    @property
    def macro_f1(self) -> float:
        """Mean F1 over the classes that the rows have or that are predicted, as scikit-learn defines it."""
        scores = [2 * right / (rows + said) for right, rows, said in self._each() if rows + said]
        return sum(scores) / len(scores)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error: how far accuracy and mean probability differ in a bin, mean over rows."""
        each = self._bins()
        return sum(abs(right - sure) for _, right, sure in each) / sum(rows for rows, _, _ in each)

    def tables(self) -> dict[str, Any]:
        """Calibration: for every bin its range, its rows, their mean probability and accuracy."""
        each = [
            {
                "above": number / BINS,
                "up_to": (number + 1) / BINS,
                "rows": rows,
                "probability": sure / rows if rows else None,
                "accuracy": right / rows if rows else None,
            }
            for number, (rows, right, sure) in enumerate(self._bins())
        ]
        return {"calibration": each}

    def _beyond_accuracy(self) -> dict[str, float]:
        return {
            "balanced_accuracy": self.balanced_accuracy,
            "macro_f1": self.macro_f1,
            "calibration_error": self.calibration_error,
        }

    def _bins(self) -> list[tuple[int, int, float]]:
        """Of each bin: its rows, how many were right, the sum of their largest probabilities."""
        return [(wrong + right, right, sure / _UNIT) for wrong, right, sure in zip(*self.bins.tolist(), strict=True)]

    def _each(self) -> list[tuple[int, int, int]]:
        """Of each class: rows that were right, rows that have it, rows it is predicted for."""
        return list(zip(self.correct.tolist(), self.total.tolist(), self.predicted.tolist(), strict=True))
