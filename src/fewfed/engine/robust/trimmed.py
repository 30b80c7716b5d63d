"""The trimmed mean of every number (Yin et al., ICML 2018)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from fewfed.engine.robust.by_coordinate import by_coordinate, is_by_coordinate
from fewfed.engine.robust.parts import Gathered
from fewfed.engine.robust.rule import Ruled, assumed
from fewfed.phase import Upload


@dataclass(frozen=True)
class Trimmed:
    """Of every number, as many of the largest and of the smallest are cut off as there may be attackers; what is left
    is averaged with the clients' weights. Without any to cut off, it is the mean.

    As long as there are no more attackers, no result lies outside of what honest clients sent.
    """

    attackers: float = 0.2
    """How many of a round's clients may be: below 1 a fraction, from 1 on a count."""
    name: str = field(default="trimmed", init=False)
    works_with_fewer: bool = field(default=False, init=False)

    @property
    def told(self) -> str:
        return f"the trimmed mean, {self.attackers:g} of the clients cut off at each end"

    def covers(self, upload: Upload) -> bool:
        return is_by_coordinate(upload)

    def needs(self, invited: int) -> int:
        return 2 * assumed(self.attackers, invited) + 1

    def applied(self, gathered: Gathered, invited: int) -> Ruled:
        cut = assumed(self.attackers, invited)
        return Ruled(gathered.packets, by_coordinate(gathered, partial(_trimmed, cut)))


def _trimmed(cut: int, values: Tensor, weights: Tensor) -> Tensor:
    ordered, order = values.sort(dim=0, stable=True)
    kept, theirs = ordered[cut : len(values) - cut], weights[order[cut : len(values) - cut]]
    mean = (kept * theirs).sum(0) / theirs.sum(0)
    # The mean of equal numbers may round to another one: nothing may lie outside of what was kept.
    return torch.minimum(torch.maximum(mean, kept[0]), kept[-1])
