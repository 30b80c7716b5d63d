"""AudioNet: FLea's network for log-mel spectrograms of UrbanSound8K."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fewfed.network import Network
from fewfed.networks.blocks import mean_to_vector
from fewfed.networks.shapes import Images, Shape

SHAPES = Images()


def audionet(shape: Shape, classes: int) -> Network:
    """Four strided blocks of convolution, ReLU, BatchNorm (in that order), mean and a linear head.

    The convolutions start Kaiming-normal with a = 0.1 and zero bias. FLea shares the activations after block 2.
    """
    channels, _, _ = SHAPES.check("audionet", shape)
    stages: dict[str, nn.Module] = {
        "conv1": _block(channels, 8, kernel=5),
        "conv2": _block(8, 16, kernel=3),
        "conv3": _block(16, 32, kernel=3),
        "conv4": _block(32, 64, kernel=3),
        "pool": mean_to_vector(),
        "head": nn.Linear(64, classes),
    }
    return Network("audionet", stages, cut="conv2")


def _block(inputs: int, outputs: int, kernel: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride=2, padding=kernel // 2)
    nn.init.kaiming_normal_(conv.weight, a=0.1)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return nn.Sequential(OrderedDict(conv=conv, relu=nn.ReLU(), norm=nn.BatchNorm2d(outputs)))
