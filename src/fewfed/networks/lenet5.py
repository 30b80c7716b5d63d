"""LeNet-5, in the two forms the papers use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import nn

from fewfed.network import Network
from fewfed.networks.shapes import Images, Shape

SHAPES = Images(square=(28, 32))


def lenet5(shape: Shape, classes: int) -> Network:
    """ReLU and max-pooling. 28x28 inputs are padded by 2 in the first convolution, 32x32 inputs are not."""
    return _lenet5("lenet5", shape, classes, nn.ReLU, nn.MaxPool2d)


def lenet5_tanh(shape: Shape, classes: int) -> Network:
    """Tanh and average pooling, as FLAIR writes it; otherwise as `lenet5`."""
    return _lenet5("lenet5-tanh", shape, classes, nn.Tanh, nn.AvgPool2d)


def _lenet5(
    name: str, shape: Shape, classes: int, activation: Callable[[], nn.Module], pool: Callable[[int], nn.Module]
) -> Network:
    channels, height, _ = SHAPES.check(name, shape)

    def convolution(inputs: int, outputs: int, padding: int) -> nn.Sequential:
        conv = nn.Conv2d(inputs, outputs, 5, padding=padding)
        return nn.Sequential(OrderedDict(conv=conv, activation=activation(), pool=pool(2)))

    stages: dict[str, nn.Module] = {
        "conv1": convolution(channels, 6, padding=(32 - height) // 2),
        "conv2": convolution(6, 16, padding=0),
        "fc1": nn.Sequential(OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(400, 120), activation=activation())),
        "fc2": nn.Sequential(OrderedDict(linear=nn.Linear(120, 84), activation=activation())),
        "head": nn.Linear(84, classes),
    }
    return Network(name, stages, cut="conv1")
