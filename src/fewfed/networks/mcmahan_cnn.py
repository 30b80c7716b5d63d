"""The MNIST network of the FedAvg paper (McMahan et al. 2017)."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fewfed.network import Network
from fewfed.networks.shapes import Images, Shape

SHAPES = Images(least_height=4, least_width=4)


def mcmahan_cnn(shape: Shape, classes: int) -> Network:
    """Two 5x5 convolutions with pooling, one hidden layer of 512 and a linear head."""
    channels, height, width = SHAPES.check("mcmahan-cnn", shape)
    flat = 64 * (height // 4) * (width // 4)
    stages: dict[str, nn.Module] = {
        "conv1": _convolution(channels, 32),
        "conv2": _convolution(32, 64),
        "fc1": nn.Sequential(OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(flat, 512), relu=nn.ReLU())),
        "head": nn.Linear(512, classes),
    }
    return Network("mcmahan-cnn", stages, cut="conv1")


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 5, padding=2)
    return nn.Sequential(OrderedDict(conv=conv, relu=nn.ReLU(), pool=nn.MaxPool2d(2)))
