"""AlexNet with BatchNorm for Office-Caltech10 and DomainNet: FedFA's adapted one and FedBN's original."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fewfed.network import Network
from fewfed.networks.blocks import conv_norm_relu, then_pool
from fewfed.networks.shapes import Images, Shape

# Smaller images vanish in the three 3/2 poolings behind the stride-4 convolution.
SHAPES = Images(least_height=63, least_width=63)


def alexnet(shape: Shape, classes: int) -> Network:
    """FedFA Table 10: hidden layers of 1024."""
    return _alexnet("alexnet", shape, classes, hidden=1024)


def alexnet_fedbn(shape: Shape, classes: int) -> Network:
    """FedBN's original: hidden layers of 4096."""
    return _alexnet("alexnet-fedbn", shape, classes, hidden=4096)


def _alexnet(name: str, shape: Shape, classes: int, hidden: int) -> Network:
    """The stages `conv1` to `conv5` end where FedFA augments: 1, 2 and 5 after their pooling."""
    channels, _, _ = SHAPES.check(name, shape)
    stages: dict[str, nn.Module] = {
        "conv1": then_pool(conv_norm_relu(channels, 64, 11, stride=4, padding=2, bias=True), _pool()),
        "conv2": then_pool(conv_norm_relu(64, 192, 5, padding=2, bias=True), _pool()),
        "conv3": conv_norm_relu(192, 384, 3, padding=1, bias=True),
        "conv4": conv_norm_relu(384, 256, 3, padding=1, bias=True),
        "conv5": then_pool(conv_norm_relu(256, 256, 3, padding=1, bias=True), _pool()),
        "pool": nn.Sequential(OrderedDict(mean=nn.AdaptiveAvgPool2d(6), flatten=nn.Flatten())),
        "fc1": _hidden(256 * 6 * 6, hidden),
        "fc2": _hidden(hidden, hidden),
        "head": nn.Linear(hidden, classes),
    }
    return Network(name, stages, cut="conv2")


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2)


def _hidden(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(linear=nn.Linear(inputs, outputs), norm=nn.BatchNorm1d(outputs), relu=nn.ReLU()))
