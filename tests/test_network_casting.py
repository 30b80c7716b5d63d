"""Weights cast together are the weights autocast would have cast one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fewfed import network, networks
from fewfed.network import Network


def gradients(net: Network, shape: tuple[int, ...]) -> dict[str, Tensor]:
    model = net.model()
    for leaf in model["params"].values():
        leaf.requires_grad_(True)
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net.apply(model, x)
    assert out.dtype == torch.bfloat16
    leaves = model["params"]
    found = torch.autograd.grad(out.float().square().sum(), list(leaves.values()), allow_unused=True)
    return {name: grad for name, grad in zip(leaves, found, strict=True) if grad is not None}


@pytest.mark.parametrize(("name", "shape"), [("lenet5", (1, 28, 28)), ("mobilenetv2", (3, 32, 32))])
def test_gradients_are_those_of_autocast_alone(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = networks.build(name, shape, 10, 0)
    ours = gradients(net, shape)
    monkeypatch.setattr(network, "_autocasting", lambda: False)
    alone = gradients(net, shape)
    assert ours.keys() == alone.keys()
    for key, value in alone.items():
        assert ours[key].dtype == torch.float32
        torch.testing.assert_close(ours[key], value, rtol=2e-2, atol=2e-2 * float(value.abs().max()))


def test_without_autocast_and_under_transforms_weights_stay_as_they_are() -> None:
    net = Network.of(nn.Sequential(nn.Linear(3, 2)))
    model, x = net.model(), torch.randn(5, 3)
    assert net.apply(model, x).dtype == torch.float32

    def loss(params: dict[str, Tensor]) -> Tensor:
        teacher = net.apply(model, x)  # Not an argument of the transform, and yet inside it.
        return (net.apply({"params": params, "buffers": {}}, x) - teacher).float().square().sum()

    with torch.autocast("cpu", dtype=torch.bfloat16):
        grads = torch.func.grad(loss)(model["params"])
    assert all(grad.dtype == torch.float32 for grad in grads.values())
