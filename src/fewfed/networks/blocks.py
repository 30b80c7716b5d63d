"""Modules that several networks are made of. Nothing works in place: the same activation may be read twice."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

Size = int | tuple[int, int]


def conv_norm(
    inputs: int, outputs: int, kernel: Size, stride: Size = 1, padding: Size = 0, groups: int = 1, bias: bool = False
) -> nn.Sequential:
    """Convolution and BatchNorm."""
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=bias),
            norm=nn.BatchNorm2d(outputs),
        )
    )


def conv_norm_relu(
    inputs: int, outputs: int, kernel: Size, stride: Size = 1, padding: Size = 0, groups: int = 1, bias: bool = False
) -> nn.Sequential:
    """Convolution, BatchNorm and ReLU."""
    block = conv_norm(inputs, outputs, kernel, stride, padding, groups, bias)
    block.add_module("relu", nn.ReLU())
    return block


def then_pool(block: nn.Sequential, pool: nn.Module) -> nn.Sequential:
    """The block with pooling as its last step."""
    block.add_module("pool", pool)
    return block


def mean_to_vector() -> nn.Sequential:
    """The mean of every channel, as a flat vector."""
    return nn.Sequential(OrderedDict(mean=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten()))


class Residual(nn.Module):
    """The sum of a body and a shortcut around it."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.body(x) + self.shortcut(x)
        return total
