"""BatchNorm with the following ReLU in two or four kernels a step, where torch takes nine.

A row is one position of one sample. Few rows: one program holds all rows of some channels, and sums and normalises
them in one kernel forward and one backward. Many rows: a first kernel makes partial sums over pieces of the rows; in a
second, each program adds them up and normalises its piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn import functional as F

from fewfed.engine.executors.cuda.norm_kernels import (
    backward_parts,
    backward_sums,
    backward_whole,
    forward_parts,
    forward_sums,
    forward_whole,
)

_WHOLE = 1024
"""Rows up to which one program holds all rows of its channels."""
_TILE = 4096
"""Elements a program holds otherwise."""
_PROGRAMS = 512
"""Programs that fill a device."""
_PARTS = 64
"""Partial sums that every program adds up for itself."""


@dataclass(frozen=True)
class _Cut:
    """How the work on a matrix of features is cut into programs."""

    rows: int
    channels: int
    height: int
    """Rows of a tile."""
    columns: int
    part: int
    """Rows of a program, in as many tiles as it takes."""
    warps: int

    @property
    def whole(self) -> bool:
        """Whether a tile holds all rows of its channels."""
        return self.height >= self.rows

    @property
    def parts(self) -> int:
        return int(triton.cdiv(self.rows, self.part))

    @property
    def across(self) -> int:
        return int(triton.cdiv(self.channels, self.columns))

    @property
    def grid(self) -> tuple[int, int]:
        return self.across, self.parts

    @property
    def blocks(self) -> dict[str, int]:
        return {"BLOCK_R": self.height, "BLOCK_C": self.columns, "num_warps": self.warps}

    def partial(self, device: torch.device) -> Tensor:
        """Room for two sums of every part and channel."""
        return torch.empty((self.parts, 2, self.channels), dtype=torch.float32, device=device)


def _cut(rows: int, channels: int) -> _Cut:
    """Sizes found by timing eight streams on an H200 with the shapes of MobileNetV2."""
    if rows <= _WHOLE:
        height = max(16, triton.next_power_of_2(rows))
        return _Cut(rows, channels, height, 16, height, 8)
    columns = min(32, max(8, triton.next_power_of_2(channels)))
    height = _TILE // columns
    parts = min(_PARTS, max(1, _PROGRAMS // triton.cdiv(channels, columns)))
    return _Cut(rows, channels, height, columns, triton.cdiv(triton.cdiv(rows, parts), height) * height, 4)


class _BatchNormReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, momentum: float, eps: float,
        relu: bool,
    ) -> Tensor:  # fmt: skip
        channels = x.shape[1]
        cut = _cut(x.numel() // channels, channels)
        y = torch.empty_like(x)
        means, rstds = torch.empty((2, channels), dtype=torch.float32, device=x.device)
        tensors = (x, y, weight, bias, means, rstds, mean, var)
        if cut.whole:
            forward_whole[(cut.across,)](*tensors, cut.rows, channels, eps, momentum, RELU=relu, **cut.blocks)
        else:
            partial = cut.partial(x.device)
            room = triton.next_power_of_2(cut.parts)
            forward_sums[cut.grid](x, partial, cut.rows, channels, cut.part, **cut.blocks)
            forward_parts[cut.grid](
                *tensors, partial, cut.rows, channels, cut.part, cut.parts, eps, momentum,
                RELU=relu, PARTS=room, **cut.blocks,
            )  # fmt: skip
        ctx.save_for_backward(x, weight, bias, means, rstds)
        ctx.cut, ctx.eps, ctx.relu = cut, eps, relu
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, means, rstds = ctx.saved_tensors
        if torch.is_grad_enabled():  # A second derivative is wanted, which the kernels do not have.
            y = F.batch_norm(x, None, None, weight, bias, training=True, eps=ctx.eps)
            return *_gradients(y.relu() if ctx.relu else y, (x, weight, bias), dy), None, None, None, None, None
        cut: _Cut = ctx.cut
        dy = dy.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x)
        dweight, dbias = torch.empty((2, cut.channels), dtype=torch.float32, device=x.device)
        tensors = (x, dy, dx, weight, bias, means, rstds, dweight, dbias)
        if cut.whole:
            backward_whole[(cut.across,)](*tensors, cut.rows, cut.channels, RELU=ctx.relu, **cut.blocks)
        else:
            partial = cut.partial(x.device)
            room = triton.next_power_of_2(cut.parts)
            backward_sums[cut.grid](
                x, dy, weight, bias, means, rstds, partial, cut.rows, cut.channels, cut.part,
                RELU=ctx.relu, **cut.blocks,
            )  # fmt: skip
            backward_parts[cut.grid](
                *tensors, partial, cut.rows, cut.channels, cut.part, cut.parts,
                RELU=ctx.relu, PARTS=room, **cut.blocks,
            )  # fmt: skip
        return dx, dweight, dbias, None, None, None, None, None


def _gradients(y: Tensor, inputs: tuple[Tensor, ...], dy: Tensor) -> list[Tensor | None]:
    """Gradients that can be differentiated again, of the inputs that have one."""
    asked = [value for value in inputs if value.requires_grad]
    found = iter(torch.autograd.grad(y, asked, dy, create_graph=True))
    return [next(found) if value.requires_grad else None for value in inputs]


def batch_norm_relu(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, var: Tensor, momentum: float, eps: float, relu: bool
) -> Tensor:
    """BatchNorm of features stored channels last, with the batch's statistics; updates the running statistics."""
    y: Tensor = _BatchNormReLU.apply(x, weight, bias, mean, var, momentum, eps, relu)  # type: ignore[no-untyped-call]
    return y
