"""Cutting, tapping and the BatchNorm statistics, for every network."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from fewfed import networks, tree
from fewfed.errors import ConfigError
from fewfed.network import Network


def test_two_halves_equal_the_whole_at_every_cut(case) -> None:
    network, model, x = case.network, case.model, case.x
    with torch.no_grad():
        whole = network.apply(model, x, train=False)
        for cut in range(len(network.stages) + 1):
            half = network.apply(model, x, stop=cut, train=False)
            joined = network.apply(model, half, start=cut, train=False)
            torch.testing.assert_close(joined, whole, atol=1e-6, rtol=0)


def test_tap_sees_every_stage_once_in_order(case) -> None:
    seen: list[str] = []

    def record(stage: str, main: Tensor) -> Tensor:
        assert isinstance(main, Tensor)
        seen.append(stage)
        return main

    with torch.no_grad():
        tapped = case.network.apply(case.model, case.x, tap=record, train=False)
        assert torch.equal(tapped, case.network.apply(case.model, case.x, train=False))
    assert tuple(seen) == case.network.stages


def test_tap_replaces_the_activation(case) -> None:
    """A head that is handed zeros can only answer its bias."""
    network = case.network
    before_head = network.stages[network.penultimate - 1]

    def silence(stage: str, main: Tensor) -> Tensor:
        return torch.zeros_like(main) if stage == before_head else main

    with torch.no_grad():
        out = network.apply(case.model, case.x, tap=silence, train=False)
    bias = case.model["params"]["head.bias"].view(1, -1, *[1] * (out.dim() - 2))
    assert torch.equal(out, bias.expand_as(out))


@pytest.mark.parametrize("stage", ["enc1", "enc2", "enc3", "enc4", "bottleneck"])
def test_unet_tap_reaches_the_main_path_and_never_a_skip(stage: str) -> None:
    network = networks.build("unet", (3, 32, 32), 2, seed=0)
    model = network.model()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))

    def silence(name: str, main: Tensor) -> Tensor:
        return torch.zeros_like(main) if name == stage else main

    stop = network.position(stage)
    with torch.no_grad():
        main, *skips = network.apply(model, x, stop=stop, train=False)
        silenced, *kept = network.apply(model, x, stop=stop, tap=silence, train=False)
    assert main.any()
    assert not silenced.any()
    assert len(skips) == min(stop, 4)
    assert all(torch.equal(a, b) and a.any() for a, b in zip(skips, kept, strict=True))


def test_unet_skip_is_the_encoder_output_before_its_pooling() -> None:
    network = networks.build("unet", (3, 32, 32), 2, seed=0)
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        main, skip = network.apply(network.model(), x, stop=1, train=False)
    assert skip.shape == (2, 32, 32, 32)
    assert torch.equal(nn.functional.max_pool2d(skip, 2), main)


def test_running_statistics_change_in_place_in_training_only(case) -> None:
    network = case.network
    model = tree.clone(case.model)
    before = tree.clone(model)
    tensors = dict(model["buffers"])
    with torch.no_grad():
        network.apply(model, case.x, train=False)
        assert all(torch.equal(value, before["buffers"][key]) for key, value in model["buffers"].items())
        network.apply(model, case.x, train=True)
    for key, value in model["buffers"].items():
        assert value is tensors[key]
        if key.endswith("num_batches_tracked"):
            assert torch.equal(value, before["buffers"][key] + 1)
        else:
            assert not torch.equal(value, before["buffers"][key])
    assert all(torch.equal(value, before["params"][key]) for key, value in model["params"].items())


def test_running_statistics_follow_the_batch_moments() -> None:
    """Momentum 0.1 and the unbiased batch variance, from means 0 and variances 1."""
    network = networks.build("harnet", (1, 64, 3), 6, seed=0)
    model = network.model()
    x = torch.randn(4, 1, 64, 3, generator=torch.Generator().manual_seed(0))
    p = model["params"]
    with torch.no_grad():
        conv = nn.functional.conv2d(x, p["conv1.conv.weight"], p["conv1.conv.bias"], (3, 1), 1)
        network.apply(model, x, stop=1, train=True)
    rows = conv.transpose(0, 1).flatten(1)
    torch.testing.assert_close(model["buffers"]["conv1.norm.running_mean"], 0.1 * rows.mean(1))
    torch.testing.assert_close(model["buffers"]["conv1.norm.running_var"], 0.9 + 0.1 * rows.var(1))


def test_gradient_reaches_every_parameter(case) -> None:
    """With running statistics, so that a bias in front of a BatchNorm matters as well."""
    model = tree.clone(case.model)
    params = {key: value.requires_grad_() for key, value in model["params"].items()}
    out = case.network.apply({"params": params, "buffers": model["buffers"]}, case.x, train=False)
    gradients = torch.autograd.grad(out.square().sum(), list(params.values()))
    assert all(gradient.any() for gradient in gradients)


def test_a_users_own_sequential() -> None:
    layers = OrderedDict(a=nn.Linear(4, 8), act=nn.ReLU(), b=nn.Linear(8, 3))
    module = nn.Sequential(layers)
    network = Network.of(module, name="mine", cut="act")
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    assert network.stages == ("a", "act", "b")
    assert network.position("act") == network.position(2) == network.penultimate == 2
    half = network.apply(network.model(), x, stop=2, train=False)
    assert torch.equal(network.apply(network.model(), half, start=2, train=False), module(x))


class TwoStages(nn.Module):
    """Stages are declared in the order of use, which is not the order of definition."""

    stages = ("body", "head")

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.body = nn.Sequential(nn.Linear(3, 6), nn.Tanh())
        self.unused = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def test_a_users_module_with_stages() -> None:
    module = TwoStages()
    network = Network.of(module)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    assert network.stages == ("body", "head")
    assert torch.equal(network.apply(network.model(), x), module(x))


def test_a_declared_stage_that_is_not_a_child_is_refused() -> None:
    module = TwoStages()
    module.stages = ("body", "haed")
    with pytest.raises(ConfigError, match="did you mean 'head'"):
        Network.of(module)


@pytest.mark.parametrize("cut", [0, -1, 4, "4", "99"])
def test_a_cut_outside_the_network_is_refused(cut: int | str) -> None:
    module = nn.Sequential(OrderedDict(a=nn.Linear(4, 8), act=nn.ReLU(), b=nn.Linear(8, 3)))
    with pytest.raises(ConfigError, match="expected 1 to 3"):
        Network.of(module).position(cut)


def test_an_unknown_stage_gets_a_suggestion() -> None:
    network = networks.build("mobilenetv2", (3, 32, 32), 10, seed=0)
    with pytest.raises(ConfigError, match="did you mean"):
        network.position("blok1")


def test_a_module_without_order_is_one_piece_and_cannot_be_cut() -> None:
    network = Network.of(nn.Linear(3, 2))
    assert len(network.stages) == 1
    with pytest.raises(ConfigError, match="method 'x' needs stages, but network 'custom' is in one piece"):
        network.require_stages("method 'x'")
