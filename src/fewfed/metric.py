"""What a model is judged by: metrics by name, which way is better, and how a number of theirs is shown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fewfed.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Metric:
    """One number that a score comes to."""

    name: str
    """As records, results and settings spell it."""
    title: str
    """As a reader sees it."""
    lower_is_better: bool = False
    is_share: bool = True
    """Between 0 and 1, and shown in percent."""
    needs_all_rows: bool = False
    """No sum over parts of the rows: what the model says of every row must be at hand."""

    def place_of_best(self, values: Sequence[float]) -> int:
        """Where the best of some values stands, the first of several. What is no number is never the best."""
        sign = -1 if self.lower_is_better else 1
        return max(range(len(values)), key=lambda place: _known(sign * values[place]))

    def shown(self, value: float) -> str:
        return f"{100 * value:.2f} %" if self.is_share else f"{value:.4f}"


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy"),
        Metric("balanced_accuracy", "balanced accuracy"),
        Metric("macro_f1", "macro F1"),
        Metric("auc", "AUC", needs_all_rows=True),
        Metric("calibration_error", "calibration error", lower_is_better=True),
        Metric("loss", "loss", lower_is_better=True, is_share=False),
        Metric("dice", "Dice"),
        Metric("dice_with_background", "Dice with background"),
    )
}
"""Those that a run may be judged by; each kind of score says which of them it has."""


def metric_of(name: str) -> Metric:
    """The metric of a name."""
    if name not in METRICS:
        raise ConfigError(did_you_mean("metric", name, METRICS), key="metric", value=name)
    return METRICS[name]


def _known(value: float) -> float:
    return -math.inf if math.isnan(value) else value
