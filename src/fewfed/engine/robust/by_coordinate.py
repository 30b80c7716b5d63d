"""Rules that look at every number by itself: what clients say of it is sorted, and something in the middle taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fewfed.engine.robust.parts import CHANGES, Gathered
from fewfed.phase import Combine, Upload
from fewfed.tree import Tree

Centre = Callable[[Tensor, Tensor], Tensor]
"""Takes what clients say, (clients, numbers) in double precision, and their weights; returns one of each number."""

_PIECE = 1 << 20
"""Numbers of all clients together that are sorted at once: eight megabytes."""


def is_by_coordinate(upload: Upload) -> bool:
    """Whether there is a middle of an upload: of means, and of sums of what training changes.

    Of other sums there is none. Most clients have no row of a given class, so that the middle of what they add to it is
    nothing.
    """
    return upload.combine is Combine.MEAN or (upload.combine is Combine.SUM and upload.role in CHANGES)


def by_coordinate(gathered: Gathered, centre: Centre) -> Tree:
    """The uploads that have a middle, combined; a sum is its middle as often as there are clients."""
    packets = gathered.packets
    weights = torch.tensor([packet.weight for packet in packets], dtype=torch.float64)
    found: Tree = {}
    for name, upload in gathered.phase.uploads.items():
        if not is_by_coordinate(upload):
            continue
        is_sum = upload.combine is Combine.SUM
        factors = torch.ones_like(weights) if is_sum else weights
        values = [packet.arrays[name] for packet in packets]
        found[name] = _combined(values, factors, centre, is_sum)
    return found


def _combined(values: list[Any], weights: Tensor, centre: Centre, is_sum: bool) -> Any:
    if not isinstance(values[0], Tensor):
        return {name: _combined([each[name] for each in values], weights, centre, is_sum) for name in values[0]}
    first: Tensor = values[0]
    if not first.is_floating_point():
        return _whole(torch.stack(values), is_sum)
    flat = [leaf.detach().reshape(-1) for leaf in values]
    weights, length = weights.to(first.device), max(1, _PIECE // len(values))
    pieces = [
        centre(torch.stack([leaf[start : start + length] for leaf in flat]).double(), weights)
        for start in range(0, first.numel(), length)
    ]
    middle = torch.cat(pieces) if pieces else first.new_zeros(0, dtype=torch.float64)
    return (middle * (len(values) if is_sum else 1)).to(first.dtype).reshape(first.shape)


def _whole(stacked: Tensor, is_sum: bool) -> Tensor:
    """Whole numbers are counters: the lower one of the middle is one that somebody has counted."""
    return stacked.sum(0).to(stacked.dtype) if is_sum else stacked.sort(0).values[(len(stacked) - 1) // 2]
