"""The observer that scores the model after a round, or every client's own model where each has one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewfed.data.federation import HeldOut
from fewfed.engine import asking
from fewfed.engine.loop import RoundView
from fewfed.plan import Random
from fewfed.task import Score


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

    def after_round(self, view: RoundView) -> None:
        if (view.clock.round + 1) % self.every and not view.clock.last:
            return
        view.record.add(self._scored(view, "test"))
        if len(view.job.federation.validation):
            view.record.add({"validation": self._scored(view, "validation")})

    def _scored(self, view: RoundView, on: HeldOut) -> dict[str, Any]:
        if view.job.method.personal_model:
            return self._personal(view, on)
        (score,) = view.executor.evaluate([asking.predictor(view.job, view.server, {})], on)
        return score.metrics()

    def _personal(self, view: RoundView, on: HeldOut) -> dict[str, Any]:
        job = view.job
        total = len(job.federation)
        chosen: Sequence[int] = range(total)
        if 0 < self.clients < total:
            random = Random(job.plan.seed, "evaluated clients")
            chosen = sorted(int(k) for k in random.numpy.choice(total, self.clients, replace=False))
        scores = dict(zip(chosen, view.executor.evaluate_personal(view.server, chosen, on), strict=True))
        found: dict[str, Any] = dict(_mean([score.metrics() for score in scores.values()]))
        if job.task.classes:
            matched = [score.matched(job.federation.counts(client)) for client, score in scores.items()]
            # A client may have no class that is among few validation rows.
            found["accuracy_matched"] = _mean([None if math.isnan(rate) else rate for rate in matched])
        own = _own_groups(scores, job.federation.client_groups)
        if own:
            means = _mean([score.compared for score in own.values()])
            found["per_group"] = {name: score.accuracy for name, score in own.items()}
            found |= {f"{name}_own_group": mean for name, mean in means.items()}
        return found | {"evaluated_clients": len(scores)}


def _own_groups(scores: Mapping[int, Score], client_groups: Sequence[str]) -> dict[str, Score]:
    """The score of each client's model on the test rows of the client's own group."""
    if not client_groups:
        return {}
    named = {client_groups[client]: score.groups for client, score in scores.items()}
    return {name: groups[name] for name, groups in named.items() if name in groups}


def _mean(values: Sequence[Any]) -> Any:
    """The mean of numbers, or of equal places in lists and dicts of them; None where one is missing."""
    first = values[0]
    if isinstance(first, dict):
        return {name: _mean([value[name] for value in values]) for name in first}
    if isinstance(first, list):
        return [_mean(place) for place in zip(*values, strict=True)]
    return None if None in values else sum(values) / len(values)
