"""A small convolutional network for images of any size: the default for data no paper names."""

from __future__ import annotations

from torch import nn

from fewfed.network import Network
from fewfed.networks.blocks import conv_norm_relu, mean_to_vector, then_pool
from fewfed.networks.shapes import Images, Shape

SHAPES = Images(least_height=8, least_width=8)


def small_cnn(shape: Shape, classes: int) -> Network:
    """Three 3x3 convolutions, the first two pooled, the mean of each channel and a linear head."""
    channels, _, _ = SHAPES.check("small-cnn", shape)
    stages: dict[str, nn.Module] = {
        "conv1": then_pool(conv_norm_relu(channels, 32, 3, padding=1), nn.MaxPool2d(2)),
        "conv2": then_pool(conv_norm_relu(32, 64, 3, padding=1), nn.MaxPool2d(2)),
        "conv3": conv_norm_relu(64, 128, 3, padding=1),
        "pool": mean_to_vector(),
        "head": nn.Linear(128, classes),
    }
    return Network("small-cnn", stages, cut="conv1")
