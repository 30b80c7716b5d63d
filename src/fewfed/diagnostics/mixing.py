"""What FLea's Figs. 7 and 8 show: classes of buffer, local rows and mixed batches, and the mixing weights drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fewfed.diagnostics.replay import Turn, repeat, training_of
from fewfed.engine.loop import RoundView
from fewfed.errors import ConfigError
from fewfed.tree import Tree

LABELS = ("labels", "mean_y", "y")
"""Names under which methods send labels of shared rows, as class numbers or as a share of each class."""
ROW, WEIGHT = "row", "lam"
"""Names under which methods draw which shared row is mixed in, and the weight of the local one."""


@dataclass(frozen=True)
class Mixing:
    """One client's training of one round. The three class lists are shares that add up to 1."""

    round: int
    client: int
    buffer: list[float]
    local: list[float]
    mixed: list[float]
    weights: list[float]
    """The mixing weights of the first batch, in the order drawn."""

    def as_json(self) -> dict[str, Any]:
        names = ("round", "client", "buffer", "local", "mixed", "weights")
        return {name: getattr(self, name) for name in names}


@dataclass
class MixingWatch:
    """Looks at the first client of a round's cohort, whose training is done once more.

    Any method will do that broadcasts rows with labels and draws `row` and `lam` for a step. Rounds in which nothing
    is mixed (FLea's first) are passed over.
    """

    every: int = 1
    seen: list[Mixing] = field(default_factory=list)

    def after_round(self, view: RoundView) -> None:
        if view.clock.round % self.every and not view.clock.last:
            return
        shared = training_of(view).shared
        if shared_labels(shared) is None:
            return
        client = training_of(view).combined.clients[0]
        found = mixing_of(repeat(view, client), view.clock.round + 1, view.job.federation.counts(client))
        self.seen.append(found)
        view.metrics["mixing"] = found.as_json()


def mixing_of(turn: Turn, round: int, counts: Tensor) -> Mixing:
    """Classes of the buffer, of the client's rows (`counts`), and of the targets after mixing, over all its steps."""
    labels = shared_labels(turn.received)
    if labels is None or not turn.batches or ROW not in turn.batches[0].draw or WEIGHT not in turn.batches[0].draw:
        raise ConfigError("this method mixes no shared rows into its batches: expected one that draws 'row' and 'lam'")
    classes = len(counts)
    others = class_shares(labels, classes)
    mixed = torch.cat([_targets(batch.y, batch.draw, others, classes) for batch in turn.batches])
    weights = turn.batches[0].draw[WEIGHT].flatten().tolist()
    return Mixing(round, turn.client, _shares(others.sum(0)), _shares(counts.double()), _shares(mixed.sum(0)), weights)


def shared_labels(shared: Tree) -> Tensor | None:
    """The labels of broadcast rows, whatever they are called; None where there are none."""
    found: Tensor | None = next((shared[name] for name in LABELS if name in shared), None)
    return found if found is not None and len(found) else None


def class_shares(labels: Tensor, classes: int) -> Tensor:
    """One row a label with its share of every class."""
    if labels.dim() > 1:
        return labels.double()
    return torch.eye(classes, dtype=torch.float64)[labels]


def _targets(y: Tensor, draw: Tree, others: Tensor, classes: int) -> Tensor:
    rows: Tensor = draw[ROW]
    weight: Tensor = draw[WEIGHT].double().reshape(-1, 1)
    return weight * class_shares(y, classes)[: len(rows)] + (1 - weight) * others[rows]


def _shares(totals: Tensor) -> list[float]:
    shares: list[float] = (totals / totals.sum()).tolist()
    return shares
