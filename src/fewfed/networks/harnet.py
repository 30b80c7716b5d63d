"""HARNet: FLea's network for windows of a motion sensor."""

from __future__ import annotations

from torch import nn

from fewfed.network import Network
from fewfed.networks.blocks import conv_norm_relu
from fewfed.networks.shapes import Images, Shape

# Four strided blocks leave nothing of a window shorter than 64 steps.
SHAPES = Images(least_height=64)

# (output channels, kernel along time, stride along time)
_BLOCKS = ((64, 3, 3), (128, 6, 2), (256, 6, 2), (256, 6, 2))


def harnet(shape: Shape, classes: int) -> Network:
    """Four blocks of convolution along time, BatchNorm, ReLU; then flattened into a linear head.

    Inputs are (planes, time steps, axes). Padding is 1 on both axes, as released, so each block widens the axes by 2.
    FLea shares the activations after block 2.
    """
    channels, time, axes = SHAPES.check("harnet", shape)
    stages: dict[str, nn.Module] = {}
    for outputs, kernel, stride in _BLOCKS:
        stages[f"conv{len(stages) + 1}"] = conv_norm_relu(
            channels, outputs, (kernel, 1), (stride, 1), padding=1, bias=True
        )
        channels, time, axes = outputs, (time + 2 - kernel) // stride + 1, axes + 2
    stages["flatten"] = nn.Flatten()
    stages["head"] = nn.Linear(channels * time * axes, classes)
    return Network("harnet", stages, cut="conv2")
