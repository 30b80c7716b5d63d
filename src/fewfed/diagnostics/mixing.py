"""What FLea's Figs. 7 and 8 show: classes of buffer, local rows and mixed batches, and the mixing weights drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fewfed.diagnostics.replay import Repeated, repeat, training_of
from fewfed.engine.loop import RoundView
from fewfed.errors import ConfigError
from fewfed.method import Method
from fewfed.phase import Clock, Role
from fewfed.tree import Tree


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

    Any method will do that broadcasts rows with labels and says what it mixes (`Method.mixes`). Rounds in which nothing
    is mixed (FLea's first) are passed over.
    """

    every: int = 1
    seen: list[Mixing] = field(default_factory=list)

    def after_round(self, view: RoundView) -> None:
        if view.clock.round % self.every and not view.clock.last:
            return
        method, shared = view.job.method, training_of(view).shared
        labels = shared_labels(method, view.clock, shared)
        if labels is None:
            return
        client = training_of(view).combined.clients[0]
        counts = view.job.federation.counts(client)
        found = mixing_of(method, repeat(view, client), labels, view.clock.round + 1, counts)
        self.seen.append(found)
        view.record.add({"mixing": found.as_json()})


def mixing_of(method: Method, turn: Repeated, labels: Tensor, round: int, counts: Tensor) -> Mixing:
    """Classes of the buffer (`labels`), of the client's rows (`counts`), and of the targets after mixing."""
    if method.mixes is None or not turn.batches or not set(method.mixes) <= turn.batches[0].drawn.keys():
        raise ConfigError(f"method '{method.label}' mixes no shared rows into its batches: expected one that does")
    row, weight = method.mixes
    classes = len(counts)
    others = class_shares(labels, classes)
    mixed = torch.cat(
        [_targets(batch.y, batch.drawn[row], batch.drawn[weight], others, classes) for batch in turn.batches]
    )
    weights = turn.batches[0].drawn[weight].flatten().tolist()
    return Mixing(round, turn.client, _shares(others.sum(0)), _shares(counts.double()), _shares(mixed.sum(0)), weights)


def shared_labels(method: Method, clock: Clock, shared: Tree) -> Tensor | None:
    """The labels of broadcast rows: what was uploaded as such, in the first round or in this one; None without any."""
    phases = (*method.phases(Clock(0, clock.rounds, clock.epochs)), *method.phases(clock))
    names = [name for phase in phases for name, upload in phase.uploads.items() if upload.role is Role.LABELS]
    found: Tensor | None = next((shared[name] for name in names if name in shared), None)
    return found if found is not None and len(found) else None


def class_shares(labels: Tensor, classes: int) -> Tensor:
    """One row a label with its share of every class."""
    if labels.dim() > 1:
        return labels.double()
    return torch.eye(classes, dtype=torch.float64)[labels]


def _targets(y: Tensor, rows: Tensor, weight: Tensor, others: Tensor, classes: int) -> Tensor:
    weight = weight.double().reshape(-1, 1)
    return weight * class_shares(y, classes)[: len(rows)] + (1 - weight) * others[rows]


def _shares(totals: Tensor) -> list[float]:
    shares: list[float] = (totals / totals.sum()).tolist()
    return shares
