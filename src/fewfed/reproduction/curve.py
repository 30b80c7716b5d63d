"""Points of a published accuracy curve, and whether a run lies near them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fewfed.settings import setting


@dataclass(frozen=True)
class CurvePoint:
    """One number read off a published curve, in percent, with the half-width of the band it is compared within."""

    quantity: Literal["accuracy", "best", "mean", "sd"] = setting("accuracy", "what the number is")
    round: int = setting(1, "the round, counted from 1; for mean and sd the number of rounds at the end", ge=1)
    value: float = setting(0.0, "percent")
    band: float = setting(5.0, "points", gt=0)

    @property
    def label(self) -> str:
        return {
            "accuracy": f"accuracy, round {self.round}",
            "best": f"best up to round {self.round}",
            "mean": f"mean of the last {self.round} rounds",
            "sd": f"standard deviation of the last {self.round} rounds",
        }[self.quantity]

    def measured(self, curve: Sequence[float]) -> float | None:
        """The same quantity, in percent, of a curve of fractions with one entry a round; None where it is too short."""
        if len(curve) < max(self.round, 2 if self.quantity == "sd" else 1):
            return None
        if self.quantity == "accuracy":
            return 100 * curve[self.round - 1]
        if self.quantity == "best":
            return 100 * max(curve[: self.round])
        tail = curve[-self.round :]
        return 100 * (statistics.fmean(tail) if self.quantity == "mean" else statistics.pstdev(tail))


@dataclass(frozen=True)
class CurveCheck:
    """A point beside the mean over seeds of what was measured there."""

    point: CurvePoint
    measured: float | None

    @property
    def inside(self) -> bool | None:
        return None if self.measured is None else abs(self.measured - self.point.value) <= self.point.band


def check_curve(points: Sequence[CurvePoint], curves: Sequence[Sequence[float]]) -> list[CurveCheck]:
    """Every point against the runs of one setting."""
    checks = []
    for point in points:
        found = [value for curve in curves if (value := point.measured(curve)) is not None]
        checks.append(CurveCheck(point, statistics.fmean(found) if found else None))
    return checks
