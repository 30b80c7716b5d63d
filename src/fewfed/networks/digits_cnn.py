"""A network for the 8x8 digits that come with scikit-learn: everything runs in seconds with it."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fewfed.network import Network
from fewfed.networks.blocks import conv_norm_relu, then_pool
from fewfed.networks.shapes import Images, Shape

SHAPES = Images(least_height=4, least_width=4)


def digits_cnn(shape: Shape, classes: int) -> Network:
    """Two 3x3 convolutions, the second one pooled, one hidden layer of 64 and a linear head."""
    channels, height, width = SHAPES.check("digits-cnn", shape)
    flat = 32 * (height // 2) * (width // 2)
    stages: dict[str, nn.Module] = {
        "conv1": conv_norm_relu(channels, 16, 3, padding=1),
        "conv2": then_pool(conv_norm_relu(16, 32, 3, padding=1), nn.MaxPool2d(2)),
        "fc1": nn.Sequential(OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(flat, 64), relu=nn.ReLU())),
        "head": nn.Linear(64, classes),
    }
    return Network("digits-cnn", stages, cut="conv1")
