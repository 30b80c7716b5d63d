"""GroupNorm variants: no BatchNorm is left, a row's output is its own, and everything else is as it was."""

from __future__ import annotations

import pytest
import torch
from network_cases import SHAPES
from torch import nn

from fewfed import networks
from fewfed.errors import ConfigError
from fewfed.network import Network
from fewfed.networks.group_norm import SUFFIX, groups_of
from fewfed.torch_private import BatchNorm

PLAIN = [name for name in SHAPES if not name.endswith(SUFFIX)]


def parts(net: Network) -> list[nn.Module]:
    return [part for stage in net.stages for part in net.module(stage).modules()]


def has_batch_norm(net: Network) -> bool:
    return any(isinstance(part, BatchNorm) for part in parts(net))


@pytest.mark.parametrize("name", PLAIN)
def test_exactly_the_networks_with_batch_norm_have_a_variant_without(name: str) -> None:
    shape = SHAPES[name]
    plain = networks.build(name, shape, 5, seed=3)
    assert has_batch_norm(plain) == (f"{name}{SUFFIX}" in networks.names())
    if not has_batch_norm(plain):
        with pytest.raises(ConfigError, match=f"'{name}' has no BatchNorm that GroupNorm could stand for"):
            networks.build(f"{name}{SUFFIX}", shape, 5, seed=3)
        return
    other = networks.build(f"{name}{SUFFIX}", shape, 5, seed=3)
    assert not has_batch_norm(other)
    assert (other.name, other.stages, other.cut) == (f"{name}{SUFFIX}", plain.stages, plain.cut)
    first, again = plain.model()["params"], other.model()["params"]
    assert first.keys() == again.keys()
    assert all(torch.equal(first[key], again[key]) for key in first), "the first weights are those of the seed"
    assert other.model()["buffers"] == {}
    assert networks.forms(other.name, shape, 5) == {f"params/{key}": tuple(value.shape) for key, value in again.items()}


@pytest.mark.parametrize("name", ["harnet", "digits-cnn", "resnet18"])
def test_what_it_makes_of_a_row_does_not_depend_on_the_others_and_can_be_trained_row_by_row(name: str) -> None:
    net = networks.build(f"{name}{SUFFIX}", SHAPES[name], 5, seed=3)
    model = net.model()
    x = torch.randn(4, *SHAPES[name], generator=torch.Generator().manual_seed(1))
    together = net.apply(model, x, train=True)
    apart = torch.cat([net.apply(model, row, train=True) for row in x.split(1)])
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=1e-4)

    def loss(params: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return net.apply({"params": params, "buffers": {}}, row.unsqueeze(0), train=True).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(model["params"], x)
    for number, row in enumerate(x):
        alone = torch.func.grad(loss)(model["params"], row)
        assert all(torch.allclose(each[key][number], alone[key], atol=1e-3, rtol=1e-3) for key in alone)


def test_groups_have_equal_size_and_several_channels() -> None:
    for channels in range(1, 700):
        groups = groups_of(channels)
        assert channels % groups == 0
        assert groups <= 32
        assert channels // groups >= min(4, channels)
    assert [groups_of(channels) for channels in (3, 6, 8, 16, 64, 128, 256, 960)] == [1, 1, 2, 4, 16, 32, 32, 32]
