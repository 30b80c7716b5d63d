"""One small instance of every network, shared by the tests that must hold for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from network_cases import SHAPES
from torch import Tensor

from fewfed import networks
from fewfed.network import Network
from fewfed.tree import Tree


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
