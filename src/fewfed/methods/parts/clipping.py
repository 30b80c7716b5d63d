"""Rows that are no longer than a norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_ROUNDING = 1e-6


def clipped(rows: Tensor, norm: float) -> Tensor:
    """Rows that are no longer than this; none is changed that is not. One that is not finite has no length that could
    be held to it, and counts as empty: what is left of its numbers would leave as they are."""
    if math.isfinite(norm):
        sound = torch.isfinite(rows.flatten(1)).all(1).reshape(-1, *[1] * (rows.dim() - 1))
        rows = torch.where(sound, rows, 0.0)
    length = rows.flatten(1).double().norm(dim=1)
    factor = (norm / length).clamp(max=1.0).nan_to_num(1.0)  # A row of zeros stays one, also for an infinite norm.
    short = _scaled(rows, factor)
    # In numbers of few bits, rows come out longer than the bound allows by more than rounding ever is: a bit shorter.
    over = short.flatten(1).double().norm(dim=1) > norm * (1 + _ROUNDING)
    return _scaled(rows, torch.where(over, factor * (1 - torch.finfo(rows.dtype).eps), factor))


def _scaled(rows: Tensor, factor: Tensor) -> Tensor:
    scaled: Tensor = rows.double() * factor.reshape(-1, *[1] * (rows.dim() - 1))
    return scaled.to(rows.dtype)
