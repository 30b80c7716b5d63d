from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.network import Network
from support import same


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


class Declared(nn.Module):
    """A module that names its children in the order of use, which is not the order of definition."""

    stages = ("body", "head")

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(5, 2)
        self.body = nn.Linear(3, 5)


class Skips(nn.Module):
    """Hands its input on beside its output."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x


class Joins(nn.Module):
    """Adds what was handed on."""

    def forward(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return pair[0] + pair[1]


def test_stages_of_an_unnamed_sequential_are_numbered_layers() -> None:
    net = Network.of(plain())
    assert net.stages == ("layer1", "layer2", "layer3", "layer4")
    assert net.cut is None
    assert net.position("layer3") == 3
    assert net.penultimate == 3


def test_named_and_declared_stages_keep_names_and_order() -> None:
    named = nn.Sequential(OrderedDict(first=nn.Linear(2, 2), last=nn.Linear(2, 2)))
    assert Network.of(named, cut="last").position("last") == 2
    module = Declared()
    net = Network.of(module)
    x = torch.randn(4, 3)
    assert net.stages == ("body", "head")
    assert torch.equal(net.apply(net.model(), x), module.head(module.body(x)))


def test_a_network_stays_what_it_is() -> None:
    net = Network.of(plain())
    assert Network.of(net) is net  # type: ignore[arg-type]


@pytest.mark.parametrize("cut", [1, 4, "1", "4", "layer4"])
def test_cuts_are_names_or_counts(cut: str | int) -> None:
    assert Network.of(plain()).position(cut) == int(str(cut).removeprefix("layer"))


@pytest.mark.parametrize("cut", [0, 5, -1, "0", "5", "-1"])
def test_a_cut_outside_the_network_is_refused(cut: str | int) -> None:
    net = Network.of(plain(), name="small")
    with pytest.raises(ConfigError, match=f"cut {cut} is outside network 'small': expected 1 to 4 or one of layer1"):
        net.position(cut)


def test_unknown_stages_get_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="unknown stage of network 'custom' 'layer9': did you mean 'layer"):
        Network.of(plain()).position("layer9")
    with pytest.raises(ConfigError, match="unknown stage of network 'custom' 'layr2': did you mean 'layer2'"):
        Network.of(plain(), cut="layr2")
    broken = Declared()
    broken.stages = ("body", "haed")
    with pytest.raises(ConfigError, match="unknown stage of Declared 'haed': did you mean 'head'"):
        Network.of(broken)


def test_what_has_no_stages_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a method that cuts needs stages, but network 'custom' is in one piece"):
        Network.of(nn.Linear(2, 2), cut="1")
    with pytest.raises(ConfigError, match="has no stages"):
        Network.of(nn.Sequential())


def test_a_network_is_the_module_it_was_made_of() -> None:
    module = plain()
    net = Network.of(module)
    x = torch.randn(8, 4)
    assert torch.allclose(net.apply(net.model(), x, train=False), module.eval()(x))
    assert torch.allclose(net.apply(net.model(), x, train=True), module.train()(x))


@pytest.mark.parametrize("train", [True, False])
def test_two_halves_make_the_whole_at_every_cut(train: bool) -> None:
    net = Network.of(plain())
    x = torch.randn(8, 4)
    whole = net.apply(net.model(), x, train=train)
    for cut in range(len(net.stages) + 1):
        model = net.model()
        features = net.apply(model, x, stop=cut, train=train)
        assert torch.equal(net.apply(model, features, start=cut, train=train), whole)


def test_training_changes_the_buffers_of_the_model_it_is_given_and_of_no_other() -> None:
    module = plain()
    net = Network.of(module)
    untouched, used = net.model(), net.model()
    x = torch.randn(8, 4)
    net.apply(used, x, train=False)
    assert same(used, untouched)
    net.apply(used, x, train=True)
    features = nn.functional.linear(x, used["params"]["layer1.weight"], used["params"]["layer1.bias"])
    assert torch.allclose(used["buffers"]["layer2.running_mean"], 0.1 * features.mean(0), atol=1e-6)
    assert torch.allclose(used["buffers"]["layer2.running_var"], 0.9 + 0.1 * features.var(0), atol=1e-6)
    assert same(net.model(), untouched)
    assert not bool(module.state_dict()["1.running_mean"].any())


def test_a_model_holds_parameters_and_buffers_apart_and_counts_no_batches() -> None:
    net = Network.of(plain())
    model = net.model()
    assert set(model["params"]) == {
        "layer1.weight",
        "layer1.bias",
        "layer2.weight",
        "layer2.bias",
        "layer4.weight",
        "layer4.bias",
    }
    assert set(model["buffers"]) == {"layer2.running_mean", "layer2.running_var"}
    assert all(leaf.is_floating_point() and not leaf.requires_grad for _, leaf in tree.leaves(model))
    assert net.parameter_count() == 4 * 6 + 6 + 2 * 6 + 6 * 3 + 3
    assert net.parameter_count(["layer4"]) == 6 * 3 + 3


def test_a_model_is_a_copy_each_time() -> None:
    net = Network.of(plain())
    net.model()["params"]["layer1.weight"].zero_()
    assert bool(net.model()["params"]["layer1.weight"].any())


def test_gradients_reach_the_given_weights() -> None:
    net = Network.of(plain())
    model = net.model()
    weight = model["params"]["layer1.weight"].requires_grad_(True)
    net.apply(model, torch.randn(8, 4)).square().sum().backward()
    assert weight.grad is not None
    assert bool(weight.grad.any())


def test_a_tap_sees_every_stage_and_may_change_what_is_passed_on() -> None:
    net = Network.of(plain())
    x = torch.randn(8, 4)
    seen: list[str] = []

    def watch(stage: str, value: Tensor) -> Tensor:
        seen.append(stage)
        return value

    def silence(stage: str, value: Tensor) -> Tensor:
        return value * 0 if stage == "layer3" else value

    assert torch.equal(net.apply(net.model(), x, tap=watch), net.apply(net.model(), x))
    assert seen == list(net.stages)
    seen.clear()
    net.apply(net.model(), x, stop=2, tap=watch)
    assert seen == ["layer1", "layer2"]
    quiet = net.apply(net.model(), x, tap=silence)
    assert torch.equal(quiet, net.model()["params"]["layer4.bias"].expand(8, 3))


def test_stages_may_hand_on_skips_and_a_tap_changes_the_main_path_only() -> None:
    net = Network("skipping", {"split": Skips(), "join": Joins()})
    x = torch.ones(2, 3)
    assert torch.equal(net.apply(net.model(), x), 3 * x)
    assert torch.equal(
        net.apply(net.model(), x, tap=lambda stage, value: value * (10 if stage == "split" else 1)), 21 * x
    )


def test_applying_one_model_does_not_see_another() -> None:
    net = Network.of(plain())
    first, second = net.model(), tree.scale(net.model(), 2.0)
    x = torch.randn(8, 4)
    before = net.apply(first, x, train=False)
    net.apply(second, x, train=True)
    assert torch.equal(net.apply(first, x, train=False), before)
