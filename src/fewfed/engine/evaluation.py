"""The observer that scores the model after a round, or every client's own model where each has one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fewfed.data.federation import HeldOut
from fewfed.engine import asking
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView
from fewfed.engine.scoring import examined
from fewfed.errors import ConfigError, did_you_mean
from fewfed.metric import METRICS, metric_of
from fewfed.plan import Random
from fewfed.task import Score

BESIDE = "beside"
"""Where a round's record has the numbers of models that are scored beside the one that predicts, by their names."""


@dataclass(frozen=True)
class Evaluate:
    """Adds what the task's score reports: accuracy (overall, per class, per group of test rows) and loss.

    Where clients hold rows back, the same on those rows, under `validation`.

    Personal models: the mean over clients, on the common test part (`accuracy`), reweighted to each client's own label
    proportions (`accuracy_matched`), and where clients are groups, each on its own group's rows (`per_group`, mean
    `accuracy_own_group`).
    """

    every: int = 1
    clients: int = 20
    """How many clients' own models are scored, a fixed draw; 0 = all."""
    metric: str = "accuracy"
    """What the run is judged by. Where it is no sum over parts of the rows, it is added to what the score reports."""

    def after_round(self, view: RoundView) -> None:
        if (view.clock.round + 1) % self.every and not view.clock.last:
            return
        view.record.add(self._scored(view, "test"))
        if len(view.job.federation.validation):
            view.record.add({"validation": self._scored(view, "validation")})

    def _scored(self, view: RoundView, on: HeldOut) -> dict[str, Any]:
        if view.job.method.personal_model:
            return self._personal(view, on)
        others = asking.besides(view.job, view.server)
        models = [asking.predictor(view.job, view.server, {}), *others.values()]
        if metric_of(self.metric).needs_all_rows:
            each = examined(view.job, view.executor.answers(models, on), on)
            found = [one.score.metrics() | {self.metric: one.whole[self.metric]} for one in each]
        else:
            found = [score.metrics() for score in view.executor.evaluate(models, on)]
        beside = {name: _numbers(each) for name, each in zip(others, found[1:], strict=True)}
        return found[0] | ({BESIDE: beside} if beside else {})

    def _personal(self, view: RoundView, on: HeldOut) -> dict[str, Any]:
        job = view.job
        chosen = evaluated_clients(job, self.clients)
        found: dict[str, Any]
        if metric_of(self.metric).needs_all_rows:
            each = list(examined(job, view.executor.answers_personal(view.server, chosen, on), on))
            scores = dict(zip(chosen, (one.score for one in each), strict=True))
            found = {self.metric: mean([one.whole[self.metric] for one in each])}
        else:
            scores = dict(zip(chosen, view.executor.evaluate_personal(view.server, chosen, on), strict=True))
            found = {}
        found = mean([score.metrics() for score in scores.values()]) | found
        if job.task.classes:
            found["accuracy_matched"] = mean([matched(job, client, score) for client, score in scores.items()])
        own = _own_groups(scores, job.federation.client_groups)
        if own:
            means = mean([score.compared for score in own.values()])
            found["per_group"] = {name: score.accuracy for name, score in own.items()}
            found |= {f"{name}_own_group": value for name, value in means.items()}
        return found | {"evaluated_clients": len(scores)}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """What is one number each: a model that is scored beside another is not looked at class by class."""
    return {name: value for name, value in metrics.items() if isinstance(value, float)}


def refuse_metric(job: Job, name: str) -> None:
    """Raise `ConfigError` unless the run can be judged by that metric."""
    has, kind = job.task.score_type.measures, type(job.task).__name__.lower()
    if name not in METRICS:
        raise ConfigError(did_you_mean("metric", name, has))
    if name not in has:
        raise ConfigError(f"metric '{name}' is not measured in {kind}: expected one of {', '.join(has)}")
    if METRICS[name].needs_all_rows:
        for on, rows in (("test", job.federation.test), ("validation", job.federation.validation)):
            if len(rows) and len(torch.unique(rows.y)) < 2:
                raise ConfigError(
                    f"metric '{name}' needs rows of two classes, and the {on} rows are all of one: expected another "
                    "metric, such as accuracy, or other rows"
                )


def evaluated_clients(job: Job, most: int) -> Sequence[int]:
    """The clients whose own models are scored: all, or a fixed draw of so many; 0 = all. Those of attackers are not."""
    everybody: Sequence[int] = range(len(job.federation))
    if job.adversary is not None:
        everybody = [client for client in everybody if client not in job.adversary.clients]
    if not 0 < most < len(everybody):
        return everybody
    random = Random(job.plan.seed, "evaluated clients")
    return sorted(everybody[int(k)] for k in random.numpy.choice(len(everybody), most, replace=False))


def matched(job: Job, client: int, score: Score) -> float | None:
    """A model's accuracy with a client's own label proportions; None where few rows have none of its classes."""
    rate = score.matched(job.federation.counts(client))
    return None if math.isnan(rate) else rate


def _own_groups(scores: Mapping[int, Score], client_groups: Sequence[str]) -> dict[str, Score]:
    """The score of each client's model on the test rows of the client's own group."""
    if not client_groups:
        return {}
    named = {client_groups[client]: score.groups for client, score in scores.items()}
    return {name: groups[name] for name, groups in named.items() if name in groups}


def mean(values: Sequence[Any]) -> Any:
    """The mean of numbers, or of equal places in lists and dicts of them; None where one is missing."""
    first = values[0]
    if isinstance(first, dict):
        return {name: mean([value[name] for value in values]) for name in first}
    if isinstance(first, list):
        return [mean(place) for place in zip(*values, strict=True)]
    return None if None in values else sum(values) / len(values)
