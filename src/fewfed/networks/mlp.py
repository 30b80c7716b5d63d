"""A multilayer perceptron for measurements of any shape."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from fewfed.network import Network
from fewfed.networks.shapes import Anything, Shape

SHAPES = Anything()


def mlp(shape: Shape, classes: int) -> Network:
    """Two hidden layers, 128 and 64 wide, and a linear head; no normalisation.

    Cut behind the first that is narrower than the input, else behind the narrower one: from a layer that is wider than
    the input, rows can be had back by solving equations.
    """
    inputs = math.prod(SHAPES.check("mlp", shape))
    stages: dict[str, nn.Module] = {
        "hidden1": nn.Sequential(OrderedDict(flatten=nn.Flatten(), linear=nn.Linear(inputs, 128), relu=nn.ReLU())),
        "hidden2": nn.Sequential(OrderedDict(linear=nn.Linear(128, 64), relu=nn.ReLU())),
        "head": nn.Linear(64, classes),
    }
    return Network("mlp", stages, cut="hidden1" if inputs > 128 else "hidden2")
