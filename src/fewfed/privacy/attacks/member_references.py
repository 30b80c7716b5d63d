"""Reference models for membership: how would a model answer that has not seen the row?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.privacy.attacks.case import Case
from fewfed.privacy.fitting import fit
from fewfed.tree import Tree

_MOST_EPOCHS = 100


@dataclass(frozen=True)
class References:
    """Models that an attacker trained, each on a random half of its rows."""

    models: tuple[Tree, ...]
    seen: Tensor
    """(models, rows of the attacker): which were trained on."""
    epochs: int

    def first(self, count: int) -> References:
        return References(self.models[:count], self.seen[:count], self.epochs)

    @property
    def variant(self) -> str:
        return f"RMIA, {len(self.models)} reference model{'s' * (len(self.models) > 1)}"


def trained(case: Case, round: int, mine: Examples, count: int, tell: Callable[[str], None]) -> References:
    """Trained as long as the clients did until that round, at most 100 epochs."""
    training = case.job.training
    epochs = max(1, min(round * training.epochs, int(_MOST_EPOCHS * case.effort)))
    models, seen = [], torch.zeros(count, len(mine), dtype=torch.bool)
    for number in range(count):
        tell(f"reference model {number + 1} of {count}")
        random = torch.Generator().manual_seed(case.seed + 100 + number)
        chosen = torch.randperm(len(mine), generator=random)[: max(1, len(mine) // 2)]
        seen[number, chosen] = True
        models.append(
            fit(
                case.job.net, mine.rows(chosen.to(mine.y.device)), case.job.task, epochs=epochs, batch=training.batch,
                lr=training.lr, optimizer=training.optimizer, seed=case.seed + number, device=case.device,
            )
        )  # fmt: skip
    return References(tuple(models), seen, epochs)
