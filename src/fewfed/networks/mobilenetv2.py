"""MobileNetV2 for 32x32 images, as used by FLea (ICLR Table 4, read as its released network)."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fewfed.network import Network
from fewfed.networks.blocks import Residual, conv_norm, conv_norm_relu, mean_to_vector
from fewfed.networks.shapes import Images, Shape

SHAPES = Images(least_height=8, least_width=8)

# (output channels, expansion, stride of each block), group by group
_GROUPS = (
    (16, 1, (1,)),
    (24, 6, (1, 1)),
    (32, 6, (2, 1, 1)),
    (64, 6, (2, 1, 1, 1)),
    (96, 6, (1, 1, 1)),
    (160, 6, (2, 1, 1)),
    (320, 6, (1,)),
)


def mobilenetv2(shape: Shape, classes: int) -> Network:
    """Stem, 17 inverted-residual blocks, a 1x1 convolution to 1280 channels, mean and a linear head.

    ReLU and not ReLU6, no dropout, and a shortcut convolution wherever a stride-1 block changes its width. FLea shares
    the activations after block 1.
    """
    channels, _, _ = SHAPES.check("mobilenetv2", shape)
    stages: dict[str, nn.Module] = {"stem": conv_norm_relu(channels, 32, 3, padding=1)}
    width = 32
    for outputs, expansion, strides in _GROUPS:
        for stride in strides:
            stages[f"block{len(stages)}"] = _inverted_residual(width, outputs, expansion, stride)
            width = outputs
    stages["last"] = conv_norm_relu(width, 1280, 1)
    stages["pool"] = mean_to_vector()
    stages["head"] = nn.Linear(1280, classes)
    return Network("mobilenetv2", stages, cut="block1")


def _inverted_residual(inputs: int, outputs: int, expansion: int, stride: int) -> nn.Module:
    middle = expansion * inputs
    body = nn.Sequential(
        OrderedDict(
            expand=conv_norm_relu(inputs, middle, 1),
            depthwise=conv_norm_relu(middle, middle, 3, stride, padding=1, groups=middle),
            project=conv_norm(middle, outputs, 1),
        )
    )
    if stride > 1:
        return body
    return Residual(body, nn.Identity() if inputs == outputs else conv_norm(inputs, outputs, 1))
