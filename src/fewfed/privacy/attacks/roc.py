"""How well a score tells members from others: area, hits at a given share of false alarms, balanced accuracy."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fewfed.privacy.attacks import intervals
from fewfed.privacy.attacks.finding import Measure

_Z = 1.959963984540054
LEAST_FOR_A_THOUSANDTH = 10_000
"""Non-members below which hits at 0.1 % false alarms rest on fewer than ten rows."""
LEAST_FOR_A_HUNDREDTH = 100


def area(members: Tensor, others: Tensor) -> tuple[float, float, float]:
    """The area under the curve with DeLong's interval, on the scale of its logit, since near 1 it would reach too
    little below; where the two are apart, Wilson's for the smaller group."""
    members, others = members.double().flatten(), others.double().flatten()
    above, below = _share_below(members, others), 1 - _share_below(others, members)
    value = float(above.mean())
    variance = sum(float(each.var()) / len(each) if len(each) > 1 else 0.25 for each in (above, below))
    if variance == 0 or value in (0.0, 1.0):  # No overlap, or all scores equal: the sample does not know its spread.
        few = min(len(members), len(others))
        return value, *intervals.of_share(round(value * few), few)
    half = _Z * math.sqrt(variance) / (value * (1 - value))
    middle = math.log(value / (1 - value))
    low, high = (0.5 * (1 + math.tanh(end / 2)) for end in (middle - half, middle + half))
    return value, low, high


def _share_below(scores: Tensor, others: Tensor) -> Tensor:
    """Of each score, the share of others below it; equal ones count half."""
    ordered = others.sort().values
    less = torch.searchsorted(ordered, scores, side="left")
    not_more = torch.searchsorted(ordered, scores, side="right")
    return (less + not_more).double() / (2 * len(ordered))


def hits_at(members: Tensor, others: Tensor, false_alarms: float) -> int:
    """How many members are above the threshold that at most that share of others passes."""
    allowed = math.floor(false_alarms * len(others) + 1e-9)
    threshold = others.sort(descending=True).values[allowed]
    return int((members > threshold).sum())


def best_threshold(members: Tensor, others: Tensor) -> float:
    """Between two scores, so that most rows are told apart when both groups count the same."""
    scores = torch.unique(torch.cat([members, others]))
    cuts = torch.cat([scores[:1] - 1, (scores[1:] + scores[:-1]) / 2])
    hits = 1 - torch.searchsorted(members.sort().values, cuts, side="right").double() / len(members)
    passed = torch.searchsorted(others.sort().values, cuts, side="right").double() / len(others)
    return float(cuts[(hits + passed).argmax()])


def measures(members: Tensor, others: Tensor, seed: int, raw: float | None = None) -> tuple[Measure, ...]:
    """All of them, for as many members as others. `raw`: the area from undefended raw rows."""
    members, others = members.double().cpu(), others.double().cpu()
    count = len(members)
    value, low, high = area(members, others)
    found = [Measure("AUC", value, low, high, 2 * count, 0.5, raw)]
    for share, least, name in (
        (0.01, LEAST_FOR_A_HUNDREDTH, "1 %"),
        (0.001, LEAST_FOR_A_THOUSANDTH, "0.1 %"),
    ):
        if len(others) >= least:
            hits = hits_at(members, others, share)
            found.append(
                Measure(f"TPR at {name} FPR", hits / count, *intervals.of_share(hits, count), count, chance=share)
            )
    if count >= 2:
        found.append(_balanced(members, others, seed))
    return tuple(found)


def _balanced(members: Tensor, others: Tensor, seed: int) -> Measure:
    """The threshold is from one half of the rows, the accuracy from the other."""
    random = torch.Generator().manual_seed(seed)
    halves = []
    for scores in (members, others):
        mixed = scores[torch.randperm(len(scores), generator=random)]
        halves.append((mixed[: len(mixed) // 2], mixed[len(mixed) // 2 :]))
    threshold = best_threshold(halves[0][0], halves[1][0])
    right = int((halves[0][1] > threshold).sum()) + int((halves[1][1] <= threshold).sum())
    rows = len(halves[0][1]) + len(halves[1][1])
    what = "balanced accuracy, threshold from other rows"
    return Measure(what, right / rows, *intervals.of_share(right, rows), rows, chance=0.5)


def left_out(others: int) -> str:
    """Which measures are not printed, and why."""
    if others < LEAST_FOR_A_HUNDREDTH:
        return f"no TPR at 1 % or 0.1 % FPR: {others} non-members, needed {LEAST_FOR_A_HUNDREDTH} and 10 000"
    if others < LEAST_FOR_A_THOUSANDTH:
        return f"no TPR at 0.1 % FPR: {others} non-members, needed 10 000"
    return ""
