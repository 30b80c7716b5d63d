"""Clients stacked along a new axis train as they would one after the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from fewfed import networks, tree
from fewfed.tree import Tree

CASES = [("lenet5", (1, 28, 28)), ("harnet", (1, 128, 3)), ("digits-cnn", (1, 8, 8))]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_stacked_clients_equal_a_loop(name: str, shape: tuple[int, ...]) -> None:
    network = networks.build(name, shape, 6, seed=0)
    clients = [network.model(), networks.build(name, shape, 6, seed=1).model()]
    x = torch.randn(2, 4, *shape, generator=torch.Generator().manual_seed(0))
    looped = [tree.clone(client) for client in clients]
    stacked = tree.stack(clients)

    def forward(model: Tree, batch: Tensor) -> Tensor:
        out = network.apply(model, batch, train=True)
        assert isinstance(out, Tensor)
        return out

    expected = torch.stack([forward(model, batch) for model, batch in zip(looped, x, strict=True)])
    torch.testing.assert_close(vmap(forward)(stacked, x), expected, atol=1e-5, rtol=1e-5)
    for part in ("params", "buffers"):
        for key, value in stacked[part].items():
            alone = torch.stack([model[part][key] for model in looped])
            torch.testing.assert_close(value, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_stacked_gradients_equal_a_loop(name: str, shape: tuple[int, ...]) -> None:
    network = networks.build(name, shape, 6, seed=0)
    clients = [network.model(), networks.build(name, shape, 6, seed=1).model()]
    x = torch.randn(2, 4, *shape, generator=torch.Generator().manual_seed(0))

    def loss(params: Tree, buffers: Tree, batch: Tensor) -> Tensor:
        out = network.apply({"params": params, "buffers": tree.map(torch.clone, buffers)}, batch, train=True)
        return torch.logsumexp(out, 1).sum()

    expected = tree.stack([grad(loss)(c["params"], c["buffers"], b) for c, b in zip(clients, x, strict=True)])
    stacked = tree.stack(clients)
    got = vmap(grad(loss))(stacked["params"], stacked["buffers"], x)
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, atol=1e-4, rtol=1e-3)
