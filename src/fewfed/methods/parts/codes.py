"""Rows as few bits: steps between a row's smallest and largest number, several to a byte, and only some channels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fewfed.tree import Tree


def encode(rows: Tensor, bits: int, keep: float = 1.0) -> Tree:
    """Arrays that stand for rows, with as many rows each. `form` has no numbers, but a shape: that of the rows, which
    is so known where there are none."""
    made: Tree = {"form": rows.new_zeros(*rows.shape, 0, dtype=torch.uint8)}
    count = max(1, round(keep * rows.shape[1])) if rows.dim() > 1 else 1
    if rows.dim() > 1 and count < rows.shape[1]:
        strength = rows.reshape(*rows.shape[:2], math.prod(rows.shape[2:])).square().sum(2)
        channels = strength.topk(count, dim=1).indices.sort(1).values
        made["channels"] = channels.to(torch.int16 if rows.shape[1] < 1 << 15 else torch.int32)
        rows = rows.gather(1, _spread(channels, rows.shape))
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    if not bits:
        return {**made, "values": flat}
    low, high = flat.aminmax(dim=1)
    step = (high - low) / (2**bits - 1)
    codes = torch.where(step > 0, (flat.T - low) / step, 0.0).round().clamp(0, 2**bits - 1).T
    # What is not a number has no code; it shows in `low` and `step`, which are refused for it.
    return {**made, "codes": packed(codes.nan_to_num(0.0).to(torch.uint8), bits), "low": low, "step": step}


def decode(made: Tree, bits: int) -> Tensor:
    """The rows that such arrays stand for."""
    shape = (len(made["form"]), *made["form"].shape[1:-1])
    channels = made.get("channels")
    held = shape if channels is None else (shape[0], channels.shape[1], *shape[2:])
    if bits:
        codes = unpacked(made["codes"], bits)[:, : math.prod(held[1:])]
        flat = (codes.to(made["step"].dtype).T * made["step"] + made["low"]).T
    else:
        flat = made["values"]
    rows: Tensor = flat.reshape(held)
    if channels is None:
        return rows
    known = channels.long().clamp(0, shape[1] - 1)  # They come from a client, and nothing that it sends may end a run.
    return rows.new_zeros(shape).scatter(1, _spread(known, shape), rows)


def packed(codes: Tensor, bits: int) -> Tensor:
    """Codes of so many bits as bytes, the first in the lowest bits; the last byte of a row may be filled up with 0."""
    each = 8 // bits
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[1] % each))
    parts = padded.reshape(len(codes), padded.shape[1] // each, each)
    shifts = bits * torch.arange(each, device=codes.device)
    return (parts.long() << shifts).sum(2).to(torch.uint8)


def unpacked(data: Tensor, bits: int) -> Tensor:
    """The inverse of `packed`, with what was filled up."""
    shifts = bits * torch.arange(8 // bits, device=data.device)
    parts: Tensor = (data.long().unsqueeze(2) >> shifts) & (2**bits - 1)
    return parts.reshape(len(data), data.shape[1] * (8 // bits)).to(torch.uint8)


def _spread(channels: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
    """Numbers of channels (rows, channels) for every position of rows of a shape."""
    return channels.reshape(*channels.shape, *[1] * (len(shape) - 2)).expand(*channels.shape, *shape[2:])
