"""A mark that is put on inputs, to find out whether it can still be told from what is sent."""

from __future__ import annotations

import torch
from torch import Tensor

from fewfed.privacy.attacks.decoders import is_picture

_SIDE, _FROM, _OF = 5, 2, 32
"""The published mark: pixels 2 to 6 of both sides, on pictures of 32 pixels; larger ones have it as it is."""


def why_unmarked(shape: tuple[int, ...]) -> str:
    """Why inputs of a shape cannot be marked; empty where they can."""
    if len(shape) != 3:
        return f"inputs of shape {shape} have no places where a mark could be put"
    return ""


def told(shape: tuple[int, ...]) -> str:
    """What the mark is, in words."""
    rows, columns = _stretch(shape[1]), _stretch(shape[2])
    if is_picture(shape):
        return f"a square of {len(rows)}x{len(columns)} pixels at its largest value in the first channel"
    return f"the first channel at its largest value in {len(rows)} steps of the first {len(columns)} columns"


def marked(x: Tensor) -> Tensor:
    """Inputs with the mark: a square in the first channel (red) at the largest value that channel has anywhere; on
    planes that are no pictures, such as windows of a sensor, a stretch of the longer side."""
    _, height, width = x.shape[1:]
    found = x.clone()
    rows, columns = _stretch(height), _stretch(width)
    found[:, 0, rows.start : rows.stop, columns.start : columns.stop] = x[:, 0].max()
    return found


def _stretch(side: int) -> range:
    """Where the mark lies along a side: in proportion on sides shorter than 32, at least two places if there are."""
    if side >= _OF:
        return range(_FROM, _FROM + _SIDE)
    length = min(side, max(2, round(side * _SIDE / _OF)))
    first = min(round(side * _FROM / _OF), side - length)
    return range(first, first + length)


def halves(rows: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Row numbers in four parts: to learn from with and without the mark, and to be tested on likewise."""
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    parts = order.tensor_split(4)
    return parts[0], parts[1], parts[2], parts[3]
