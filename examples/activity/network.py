"""A network small enough for a phone: 10 thousand weights, where the papers' HARNet has 700 thousand."""

from collections import OrderedDict

from torch import nn


def build(shape: tuple[int, ...], classes: int) -> nn.Sequential:
    """Inputs are (1, time steps, signals). Two convolutions along time, the first over all signals at once."""
    _, _, signals = shape
    return nn.Sequential(
        OrderedDict(
            conv1=_block(1, 32, (8, signals), 4),
            conv2=_block(32, 48, (5, 1), 2),
            mean=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            head=nn.Linear(48, classes),
        )
    )


def _block(inputs: int, outputs: int, kernel: tuple[int, int], stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, (stride, 1)), nn.GroupNorm(4, outputs), nn.ReLU())
