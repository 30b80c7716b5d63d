"""What one finished run of a study says, whether its folder is at hand or only the record that was kept of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fewfed.errors import RunError
from fewfed.reproduction.study import Study
from fewfed.runs.results import Summary, best_on_validation, last_leak


@dataclass(frozen=True)
class Outcome:
    """The curve of the metric that the study compares, and what a table says beside it."""

    metric: str
    evaluated: tuple[int, ...]
    """The rounds after which the model was scored, counted from 1."""
    values: tuple[float, ...]
    """What was measured then, as fractions."""
    rounds: int
    seconds: float
    failed: int = 0
    note: str = ""
    terms: Mapping[str, float] = field(default_factory=dict)
    """Loss terms that the study shows, each the mean over rounds."""
    chosen: int | None = None
    """Which of the values belongs to the round that is best by the metric on the validation rows."""
    megabytes: tuple[float, float] | None = None
    """What all clients sent and received; None where an older record does not say."""
    leak: tuple[float, float] | None = None
    """R2 of shared rows as they could last be reconstructed, and the part re-identified; None where none are shared,
    or nobody measured it."""

    @property
    def accuracy(self) -> Summary:
        return Summary.of(self.values, self.chosen)


def outcome_of(study: Study, metrics: Sequence[Mapping[str, Any]], note: str = "") -> Outcome:
    """The outcome of a finished run by its metrics, one record a round."""
    metric = next((name for name in study.metric if any(_value(record, name) is not None for record in metrics)), None)
    if metric is None:
        raise RunError(f"{study.name} compares {' or '.join(study.metric)}, which the run did not measure")
    scored = [record for record in metrics if _value(record, metric) is not None]
    return Outcome(
        metric=metric,
        evaluated=tuple(int(record["round"]) for record in scored),
        values=tuple(float(_value(record, metric)) for record in scored),
        rounds=len(metrics),
        seconds=sum(record["seconds"] for record in metrics),
        failed=sum(len(record["failed"]) for record in metrics),
        note=note,
        terms=_terms(study.terms, metrics),
        chosen=best_on_validation(scored, metric),
        megabytes=_megabytes(metrics),
        leak=None if (leak := last_leak(metrics)) is None else (leak.r2, leak.reidentified),
    )


def _value(record: Mapping[str, Any], metric: str) -> Any:
    """What a round's record has of a metric; `validation.accuracy`: on the rows kept for validation."""
    part, dot, name = metric.rpartition(".")
    return (record.get(part) or {}).get(name) if dot else record.get(name)


def _megabytes(metrics: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    up, down = (sum(record["bytes"][way] for record in metrics) / 1e6 for way in ("up", "down"))
    return up, down


def _terms(names: Sequence[str], metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    phases = [phase.get("terms", {}) for record in metrics for phase in record["phases"].values()]
    found = {name: [terms[name] for terms in phases if name in terms] for name in names}
    return {name: statistics.fmean(values) for name, values in found.items() if values}
