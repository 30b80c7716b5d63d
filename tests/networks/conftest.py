"""One small instance of every network, shared by the tests that must hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fewfed import networks
from fewfed.network import Network
from fewfed.tree import Tree

SHAPES = {
    "mobilenetv2": (3, 16, 16),
    "audionet": (2, 32, 40),
    "harnet": (1, 64, 3),
    "lenet5": (1, 28, 28),
    "lenet5-tanh": (3, 32, 32),
    "mcmahan-cnn": (1, 12, 16),
    "resnet9": (3, 16, 16),
    "resnet9-dropout": (3, 16, 16),
    "resnet9-wide": (3, 16, 16),
    "resnet18": (3, 16, 16),
    "resnet18-7x7": (3, 32, 32),
    "alexnet": (3, 64, 64),
    "alexnet-fedbn": (3, 64, 64),
    "unet": (3, 32, 32),
    "small-cnn": (2, 9, 13),
    "digits-cnn": (1, 8, 8),
    "mlp": (3, 5),
}


@dataclass(frozen=True)
class Case:
    """A network with a model whose running statistics are no longer the initial ones, and a batch for it."""

    network: Network
    model: Tree
    x: Tensor
    classes: int


@pytest.fixture(scope="session", params=sorted(SHAPES))
def case(request: pytest.FixtureRequest) -> Case:
    name: str = request.param
    network = networks.build(name, SHAPES[name], classes=5, seed=3)
    x = torch.randn(3, *SHAPES[name], generator=torch.Generator().manual_seed(1))
    model = network.model()
    with torch.no_grad():
        network.apply(model, x, train=True)
    return Case(network, model, x, classes=5)
