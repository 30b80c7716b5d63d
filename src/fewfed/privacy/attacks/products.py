"""Ridge regression on rows that were sent in several rounds, from their products alone.

Rounds side by side are what they have in common, their mean, and what each has apart from it. Both have products of
their own, so that every weight between them is cheap to try, however wide the rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fewfed.privacy.attacks.ridge import PENALTIES

_ROUNDING = 1e-12
"""What rounds have apart, as a part of what they have in common, below which it is rounding."""


class Rebuilt(NamedTuple):
    """What a regression says."""

    error: float
    """On rows held out, with the penalty that is best for them."""
    inputs: Tensor
    """Of all rows that were asked for."""


@dataclass(frozen=True)
class Products:
    """Of the rows that are learnt from, and then of those that are asked for, with the former; 1 on average."""

    common: Tensor
    apart: Tensor
    labels: Tensor

    @classmethod
    def of(
        cls, learn: Sequence[Tensor], asked: Sequence[Tensor], labels: Tensor, asked_labels: Tensor, *, unit: bool
    ) -> Products:
        """`learn`, `asked`: by round, the same rows in each. `unit`: each row in units of its own deviation, in which
        noise in proportion to a row is as wide everywhere."""
        count, total, each = len(labels), torch.zeros(()), torch.zeros(())
        for two in zip(learn, asked, strict=True):
            rows = _centred(*two, unit=unit)
            total, each = total.to(rows) + rows, each.to(rows) + rows @ rows[:count].T
        common, said = total @ total[:count].T / len(learn), _centred(labels, asked_labels, unit=False)
        apart = _scaled(each - common, least=_ROUNDING * _size(common))
        return cls(_scaled(common), apart, _scaled(said @ said[:count].T))

    def fitted(self, apart: float, labels: float, inputs: Tensor, goal: Tensor) -> Rebuilt:
        """`apart`: the part of what is looked at that rounds have apart. `labels`: what they weigh beside all that.
        `goal`: the inputs behind the first rows that are asked for, by which the penalty is chosen."""
        mixed, count = (1 - apart) * self.common + apart * self.apart + labels * self.labels, len(inputs)
        values, vectors = torch.linalg.eigh(mixed[:count])
        values, centre = values.clamp(min=0), inputs.double().mean(0)
        along, aim = mixed[count:] @ vectors, vectors.T @ (inputs.double() - centre)
        size = values.mean().clamp(min=torch.finfo(torch.float32).tiny)
        best: Rebuilt | None = None
        for penalty in PENALTIES:
            found = along @ (aim / (values + penalty * size)[:, None]) + centre
            error = float((found[: len(goal)] - goal).square().mean())
            if best is None or error < best.error:
                best = Rebuilt(error, found)
        if best is None:
            raise ValueError("no penalty was tried")
        return best


def _centred(learn: Tensor, asked: Tensor, *, unit: bool) -> Tensor:
    rows = torch.cat([learn, asked]).double()
    if unit:
        rows = rows / rows.std(1, correction=0, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return rows - rows[: len(learn)].mean(0)


def _size(products: Tensor) -> float:
    return float(products.diagonal().mean())


def _scaled(products: Tensor, least: float = 0.0) -> Tensor:
    size = _size(products)
    return products / size if size > max(least, torch.finfo(torch.float32).tiny) else torch.zeros_like(products)
