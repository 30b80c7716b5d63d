"""The area under the curve of true against false positives, which needs every row at once."""

from __future__ import annotations

import torch
from torch import Tensor


def area(certainty: Tensor, positive: Tensor) -> float | None:
    """How likely a positive row is held for one more than a negative row is; equal ones count half.

    None where there are no positive rows, or no others.
    """
    hits = int(positive.sum())
    misses = len(positive) - hits
    if not hits or not misses:
        return None
    # Ranks from 1, equal values sharing the mean of theirs. They are halves of whole numbers, so the sum is exact.
    _, place, counts = torch.unique(certainty, return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0).double() - (counts.double() - 1) / 2
    above = float(ranks[place[positive]].sum()) - hits * (hits + 1) / 2
    return above / (hits * misses)


def areas(output: Tensor, y: Tensor) -> list[float | None]:
    """Of each class against all others, by its probability; None for a class that no row has, or every row.

    Probabilities are of double precision: in single precision many round to 1, and would count as equal. What is no
    number is held for least likely.
    """
    probability = output.double().softmax(1).nan_to_num(nan=-1.0)
    return [area(probability[:, label], y == label) for label in range(probability.shape[1])]


def overall(per_class: list[float | None]) -> float | None:
    """Of two classes, the area of the second, the positive one; of several, the mean over those that have one."""
    if len(per_class) == 2:
        return per_class[1]
    known = [one for one in per_class if one is not None]
    return sum(known) / len(known) if known else None
