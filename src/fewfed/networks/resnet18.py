"""ResNet-18 with the stem for small images, or with the original one."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from fewfed.network import Network
from fewfed.networks.blocks import Residual, conv_norm, conv_norm_relu, mean_to_vector, then_pool
from fewfed.networks.shapes import Images, Shape

SHAPES = Images(least_height=8, least_width=8)


def resnet18(shape: Shape, classes: int) -> Network:
    """CIFAR stem: 3x3, stride 1, no pooling."""
    channels, _, _ = SHAPES.check("resnet18", shape)
    return _resnet18("resnet18", conv_norm_relu(channels, 64, 3, padding=1), classes)


def resnet18_7x7(shape: Shape, classes: int) -> Network:
    """Original stem: 7x7, stride 2, max-pooling. It shrinks 32x32 inputs to 1x1 before the mean (FLAIR's text)."""
    channels, _, _ = SHAPES.check("resnet18-7x7", shape)
    stem = then_pool(conv_norm_relu(channels, 64, 7, stride=2, padding=3), nn.MaxPool2d(3, stride=2, padding=1))
    return _resnet18("resnet18-7x7", stem, classes)


def _resnet18(name: str, stem: nn.Module, classes: int) -> Network:
    stages: dict[str, nn.Module] = {
        "stem": stem,
        "layer1": _layer(64, 64, stride=1),
        "layer2": _layer(64, 128, stride=2),
        "layer3": _layer(128, 256, stride=2),
        "layer4": _layer(256, 512, stride=2),
        "pool": mean_to_vector(),
        "head": nn.Linear(512, classes),
    }
    return Network(name, stages, cut="layer1")


def _layer(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(first=_basic(inputs, outputs, stride), second=_basic(outputs, outputs, stride=1)))


def _basic(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    body = nn.Sequential(
        OrderedDict(
            first=conv_norm_relu(inputs, outputs, 3, stride, padding=1),
            second=conv_norm(outputs, outputs, 3, padding=1),
        )
    )
    same = inputs == outputs and stride == 1
    shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride)
    return nn.Sequential(OrderedDict(sum=Residual(body, shortcut), relu=nn.ReLU()))
