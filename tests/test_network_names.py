"""What a user's module calls its weights comes back: shared ones, frozen ones, and those that no stage uses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fewfed import networks, tree
from fewfed.errors import ConfigError
from fewfed.network import Network
from fewfed.tree import Tree
from support import same

ROWS = torch.rand(5, 6, generator=torch.Generator().manual_seed(3))


class Tied(nn.Module):
    """Reads and writes with the same matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(6, 4, bias=False)
        self.act = nn.Tanh()
        self.write = nn.Linear(4, 6, bias=False)
        self.again = nn.Linear(6, 4, bias=False)
        self.again.weight = self.read.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.again(self.write(self.act(self.read(x))))
        return out


class Odd(nn.Module):
    """Buffers of both kinds, an unused child, a weight of its own, and a frozen layer."""

    stages = ("first", "norm", "last")

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 4), Counted(4), nn.Linear(4, 3)
        self.spare = nn.Linear(2, 2)
        self.own = nn.Parameter(torch.randn(3))
        self.first.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.norm(self.first(x)))
        return out


class Counted(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("passing", torch.randn(width), persistent=False)
        self.register_buffer("lasting", torch.randn(width))

    def forward(self, x: Tensor) -> Any:
        return self.norm(x) + self.passing + self.lasting


class Skipping(nn.Module):
    """In one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.norm(x)) + x


class Silent(nn.Module):
    """Says what its stages are, and nothing else."""

    stages = ("read", "act", "read")

    def __init__(self) -> None:
        super().__init__()
        self.act, self.read = nn.Tanh(), nn.Linear(6, 6)


def parametrized() -> nn.Module:
    weighted = nn.utils.parametrizations.weight_norm(nn.Linear(6, 4))
    return nn.Sequential(weighted, nn.ReLU(), nn.Linear(4, 3))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "numbers": lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)),
    "names": lambda: nn.Sequential(OrderedDict(one=nn.Linear(6, 4), two=nn.Linear(4, 3))),
    "tied": Tied,
    "odd": Odd,
    "one piece": Skipping,
    "parametrized": parametrized,
    "double": lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)).double(),
}


def shaken(net: Network) -> Tree:
    """A model unlike the first."""
    draw = torch.Generator().manual_seed(9)
    return tree.map(lambda leaf: (leaf + 0.1 * torch.rand(leaf.shape, generator=draw)).to(leaf.dtype), net.model())


@pytest.mark.parametrize("case", MODULES)
def test_a_model_goes_back_into_the_users_module(case: str) -> None:
    module = MODULES[case]()
    rows = ROWS.to(next(module.parameters()).dtype)
    net = Network.of(module, example=rows)
    model = shaken(net)
    state = net.state_dict(model)
    assert state.keys() == module.state_dict().keys()
    expected = net.apply(model, rows, train=False)
    exported = net.module_with(model)
    assert type(exported) is type(module)
    assert not exported.training
    with torch.no_grad():
        assert torch.equal(exported(rows), expected)
    assert same(net.from_state_dict(state)["params"], model["params"])
    module.load_state_dict(state)  # Strictly.
    if case != "odd":  # A buffer that is not kept cannot come back from what was kept.
        with torch.no_grad():
            assert torch.equal(module.eval()(rows), expected)
        assert same(net.from_state_dict(state), model)


@pytest.mark.parametrize("name", ["mlp", "resnet9", "unet"])
def test_networks_of_this_package_are_modules_too(name: str) -> None:
    net = networks.build(name, (3, 16, 16), 5, 0)
    model, x = shaken(net), torch.rand(2, 3, 16, 16)
    exported = net.module_with(model)
    with torch.no_grad():
        assert torch.equal(exported(x), net.apply(model, x, train=False))
    assert net.original_names == {name: name for name in (*model["params"], *model["buffers"])}
    assert same(net.from_state_dict(exported.state_dict()), model)
    counters = [key for key in exported.state_dict() if key.endswith("num_batches_tracked")]
    assert bool(counters) == any("running" in key for key in model["buffers"])


def test_entries_of_a_model_are_called_as_in_the_module_except_for_numbers() -> None:
    found = {case: Network.of(make()).original_names for case, make in MODULES.items() if case != "double"}
    assert found["numbers"]["layer2.running_mean"] == "1.running_mean"
    assert all(key == name for case in ("names", "odd", "one piece") for key, name in found[case].items())


def test_counts_of_batches_may_be_missing_and_nothing_else() -> None:
    net = Network.of(MODULES["numbers"]())
    state = net.state_dict(net.model())
    del state["1.num_batches_tracked"]
    assert same(net.from_state_dict(state), net.model())
    with pytest.raises(ConfigError, match=r"weights do not fit network 'custom': '2\.weight' is missing"):
        net.from_state_dict({name: value for name, value in state.items() if name != "2.weight"})
    with pytest.raises(ConfigError, match="'more' is unknown"):
        net.from_state_dict({**state, "more": torch.zeros(1)})
    with pytest.raises(ConfigError, match="do not fit"):
        net.from_state_dict({**state, "2.weight": torch.zeros(1)})
    with pytest.raises(ConfigError, match=r"a model has no 'layer1\.weight'"):
        net.module_with({"params": {}, "buffers": {}})


def test_a_shared_weight_is_one_entry_and_gets_the_gradient_of_every_use() -> None:
    module = Tied()
    net = Network.of(module, example=ROWS)
    assert net.stages == ("read", "act", "write", "again")
    assert list(net.model()["params"]) == ["read.weight", "write.weight"]
    assert net.parameter_count() == 48
    model = net.model()
    for leaf in model["params"].values():
        leaf.requires_grad_()
    grads = torch.autograd.grad(net.apply(model, ROWS).sum(), list(model["params"].values()))
    expected = torch.autograd.grad(module(ROWS).sum(), [module.read.weight, module.write.weight])
    assert all(torch.allclose(ours, theirs) for ours, theirs in zip(grads, expected, strict=True))
    assert same(net.starting_from(shaken(net)).model(), shaken(net))


def test_frozen_parameters_are_kept_and_not_trained() -> None:
    net = Network.of(Odd(), example=ROWS)
    model = net.model()
    assert {"first.weight", "first.bias"} <= model["buffers"].keys()
    assert set(model["params"]) == {"norm.norm.weight", "norm.norm.bias", "last.weight", "last.bias"}
    assert same(net.to(torch.float64).to(torch.float32).model(), model)


def test_a_module_without_forward_can_be_called_afterwards() -> None:
    module = Silent()
    net = Network.of(module, example=ROWS)
    assert net.stages == ("read", "act", "read_2")
    model = shaken(net)
    exported = net.module_with(model)
    with torch.no_grad():
        assert torch.equal(exported(ROWS), net.apply(model, ROWS, train=False))
    assert same(net.from_state_dict(net.state_dict(model)), model)


def test_other_types_reach_the_users_module() -> None:
    net = Network.of(Odd(), example=ROWS).to(torch.float64)
    assert {value.dtype for value in net.state_dict(net.model()).values()} == {torch.float64, torch.int64}


def test_parts_in_eval_mode_are_trained_like_the_rest() -> None:
    """A module is trained all of it, whatever mode its parts happen to be in, in every round alike."""
    module = nn.Sequential(nn.BatchNorm1d(6).eval(), nn.Linear(6, 3))
    net = Network.of(module, example=ROWS)
    first, model = net.apply(net.model(), ROWS), net.model()
    net.apply(model, ROWS, train=False)
    assert torch.equal(net.apply(net.model(), ROWS), first)
    assert not module[0].training
