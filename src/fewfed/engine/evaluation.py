"""The observer that scores the model after a round, or every client's own model where each has one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fewfed.engine.loop import RoundView
from fewfed.plan import Draws
from fewfed.tree import Tree


@dataclass(frozen=True)
class Evaluate:
    """Adds accuracy overall and per class, and loss. Personal models: the mean over clients, on the common test part
    (`accuracy`) and reweighted to each client's own label proportions (`accuracy_matched`)."""

    every: int = 1
    clients: int = 20
    """How many clients' own models are scored, a fixed draw; 0 = all."""

    def after_round(self, view: RoundView) -> None:
        if (view.clock.round + 1) % self.every and not view.clock.last:
            return
        if view.job.method.personal_model:
            self._personal(view)
        else:
            score = view.executor.evaluate([view.job.method.predictor(view.server, {})])[0]
            view.metrics |= {
                "accuracy": score.accuracy,
                "loss": score.mean_loss,
                "per_class": [None if math.isnan(rate) else rate for rate in score.per_class],
            }

    def _personal(self, view: RoundView) -> None:
        job = view.job
        total = len(job.federation)
        chosen = range(total)
        if 0 < self.clients < total:
            draws = Draws(job.plan.seed, "evaluated clients")
            chosen = sorted(int(k) for k in draws.numpy.choice(total, self.clients, replace=False))  # type: ignore[assignment]

        def models() -> Iterator[Tree]:
            for client in chosen:
                state = view.store.get(client)
                yield job.method.predictor(view.server, job.method.client_init(job.setup) if state is None else state)

        scores = view.executor.evaluate(models())
        count = len(scores)
        matched = sum(s.matched(job.federation.counts(k)) for s, k in zip(scores, chosen, strict=True)) / count
        classes = [[score.per_class[c] for score in scores] for c in range(len(scores[0].per_class))]
        view.metrics |= {
            "accuracy": sum(score.accuracy for score in scores) / count,
            "accuracy_matched": matched,
            "loss": sum(score.mean_loss for score in scores) / count,
            "per_class": [None if math.isnan(sum(rates)) else sum(rates) / count for rates in classes],
            "evaluated_clients": count,
        }
