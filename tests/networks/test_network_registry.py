"""Names, defaults and seeds."""

from __future__ import annotations

import math

import pytest
import torch

from fewfed import networks
from fewfed.errors import ConfigError
from fewfed.tree import Tree


def equal(a: Tree, b: Tree) -> bool:
    return all(torch.equal(a[part][key], b[part][key]) for part in ("params", "buffers") for key in a[part])


@pytest.mark.parametrize("name", ["mobilenetv2", "audionet", "harnet", "digits-cnn", "mlp"])
def test_weights_depend_on_the_seed_alone(name: str) -> None:
    shape = {"harnet": (1, 64, 3)}.get(name, (1, 16, 16))
    first = networks.build(name, shape, 10, seed=7).model()
    torch.rand(13)
    again = networks.build(name, shape, 10, seed=7).model()
    other = networks.build(name, shape, 10, seed=8).model()
    assert first["params"].keys() == again["params"].keys()
    assert equal(first, again)
    assert not torch.equal(first["params"]["head.weight"], other["params"]["head.weight"])


def test_building_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for name in ("audionet", "lenet5", "unet"):
        networks.build(name, (1, 32, 32), 10, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_refused_shape_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ConfigError):
        networks.build("alexnet", (3, 8, 8), 10, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_models_do_not_share_memory() -> None:
    network = networks.build("mlp", (4,), 2, seed=0)
    first, second = network.model(), network.model()
    first["params"]["head.bias"].add_(1)
    assert not torch.equal(first["params"]["head.bias"], second["params"]["head.bias"])


def test_audionet_starts_kaiming_normal_with_zero_bias() -> None:
    model = networks.build("audionet", (2, 64, 344), 10, seed=0).model()["params"]
    for i in range(1, 5):
        weight = model[f"conv{i}.conv.weight"]
        fan_in = weight[0].numel()
        expected = math.sqrt(2 / (1 + 0.1**2) / fan_in)
        # standard error of a sample standard deviation, four times
        assert abs(weight.std().item() - expected) < 4 * expected / math.sqrt(2 * weight.numel())
        assert not model[f"conv{i}.conv.bias"].any()


def test_other_convolutions_start_as_pytorch_starts_them() -> None:
    """Uniform on ±1/sqrt(fan in)."""
    params = networks.build("mobilenetv2", (3, 32, 32), 10, seed=0).model()["params"]
    for key in ("stem.conv.weight", "block17.body.project.conv.weight", "last.conv.weight"):
        weight = params[key]
        bound = 1 / math.sqrt(weight[0].numel())
        assert 0.95 * bound < weight.abs().max().item() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.08)


def test_an_unknown_network_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'mobilenetv2'"):
        networks.build("mobilnetv2", (3, 32, 32), 10, seed=0)


@pytest.mark.parametrize("classes", [1, 0, -3])
def test_fewer_than_two_classes_are_refused(classes: int) -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        networks.build("mlp", (4,), classes, seed=0)


def test_names_are_the_networks_and_each_knows_its_name(case) -> None:
    assert case.network.name in networks.names()


def test_names_are_unique_and_complete() -> None:
    assert len(set(networks.names())) == len(networks.names()) == 32


@pytest.mark.parametrize(
    ("data", "shape", "expected"),
    [
        ("cifar10", (3, 32, 32), "mobilenetv2"),
        ("cifar100", (3, 32, 32), "mobilenetv2"),
        ("urbansound8k", (2, 64, 344), "audionet"),
        ("har", (1, 128, 3), "harnet"),
        ("mnist", (1, 28, 28), "lenet5"),
        ("fashion-mnist", (1, 28, 28), "lenet5"),
        ("digits", (1, 8, 8), "digits-cnn"),
        ("office", (3, 256, 256), "alexnet"),
        ("office", (3, 32, 32), "small-cnn"),
        ("mnist", (784,), "mlp"),
        ("mine", (1, 8, 8), "digits-cnn"),
        ("mine", (3, 64, 48), "small-cnn"),
        ("mine", (1, 28, 28), "small-cnn"),
        ("mine", (1, 16, 16), "small-cnn"),
        ("mine", (1, 128, 9), "harnet"),
        ("mine", (1, 50, 3), "mlp"),
        ("mine", (30,), "mlp"),
        ("mine", (128, 6), "mlp"),
    ],
)
def test_default_network(data: str, shape: tuple[int, ...], expected: str) -> None:
    chosen = networks.default_for(data, shape)
    assert chosen == expected
    networks.build(chosen, shape, 10, seed=0)
