"""The observer of FLea's Fig. 3: how well classes separate before local training, after it, and after aggregation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.diagnostics.davies_bouldin import davies_bouldin
from fewfed.diagnostics.replay import model_upload, repeat, training_of
from fewfed.engine.loop import RoundView
from fewfed.network import Network
from fewfed.tree import Tree

_ROWS_AT_ONCE = 500


@dataclass(frozen=True)
class Separation:
    """Davies-Bouldin scores of one model, or the mean over several. NaN where no client had two classes."""

    train: float
    """On the clients' own rows, mean over clients."""
    test: float


@dataclass(frozen=True)
class RoundSeparation:
    """One round. `local` is the mean over clients of their own models."""

    round: int
    clients: tuple[int, ...]
    before: Separation
    local: Separation
    aggregated: Separation

    def as_json(self) -> dict[str, Any]:
        stages = {name: getattr(self, name) for name in ("before", "local", "aggregated")}
        return {
            "round": self.round,
            "clients": list(self.clients),
            **{name: {"train": _plain(stage.train), "test": _plain(stage.test)} for name, stage in stages.items()},
        }


@dataclass
class FeatureQuality:
    """Scores penultimate features every few rounds, with the first `clients` of the cohort; they train a second time.

    For methods without client state. `rounds` collects the scores; a round's metrics get them as `davies_bouldin`.
    """

    clients: int = 5
    every: int = 1
    test_rows: int = 2000
    rounds: list[RoundSeparation] = field(default_factory=list)

    def after_round(self, view: RoundView) -> None:
        if view.clock.round % self.every and not view.clock.last:
            return
        result = training_of(view)
        chosen = result.combined.clients[: self.clients]
        name = model_upload(result.phase)
        received, aggregated = result.shared[name], result.combined.values[name]
        federation, net = view.job.federation, view.job.net
        test = spread_rows(federation.test, self.test_rows)
        before, local, after, local_on_test = [], [], [], []
        for client in chosen:
            own = federation.examples(client)
            model = repeat(view, client).model
            before.append(score(net, received, own))
            local.append(score(net, model, own))
            after.append(score(net, aggregated, own))
            local_on_test.append(score(net, model, test))
        found = RoundSeparation(
            round=view.clock.round + 1,
            clients=chosen,
            before=Separation(_mean(before), _mean([score(net, received, test)])),
            local=Separation(_mean(local), _mean(local_on_test)),
            aggregated=Separation(_mean(after), _mean([score(net, aggregated, test)])),
        )
        self.rounds.append(found)
        view.record.add({"davies_bouldin": found.as_json()})


def penultimate_features(net: Network, model: Tree, x: Tensor) -> Tensor:
    """What the classifier reads, one flat row an input, in eval mode."""
    with torch.no_grad():
        parts = [
            net.apply(model, x[start : start + _ROWS_AT_ONCE], stop=net.penultimate, train=False).flatten(1)
            for start in range(0, len(x), _ROWS_AT_ONCE)
        ]
    return torch.cat(parts)


def spread_rows(examples: Examples, count: int) -> Examples:
    """At most `count` rows, evenly spread over all."""
    if len(examples) <= count:
        return examples
    return examples.rows(torch.linspace(0, len(examples) - 1, count).long())


def score(net: Network, model: Tree, examples: Examples) -> float | None:
    """The Davies-Bouldin score of a model's penultimate features; None for rows of fewer than two classes."""
    return davies_bouldin(penultimate_features(net, model, examples.x), examples.y)


def _mean(scores: Sequence[float | None]) -> float:
    known = [score for score in scores if score is not None]
    return math.fsum(known) / len(known) if known else math.nan


def _plain(number: float) -> float | None:
    return number if math.isfinite(number) else None
