"""Which stages give out affine functions of the input, and where a network without a cut of its own is cut."""

from __future__ import annotations

import itertools
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

from fewfed import networks
from fewfed.network import Network

IMAGE = (3, 8, 8)


class Quarter(nn.Module):
    """Reshapes and scales with a tensor of its own, which knows one type alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).float() @ torch.eye(x[0].numel()) * 0.25 + 3


class Beside(nn.Module):
    """Hands its input on in front of what it makes of it, as blocks of DenseNet do."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, 4 * channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(x).relu()], dim=1)


class Skip(nn.Module):
    """Gives out a tuple with its input in it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.relu(), x


class WithMean(nn.Module):
    """One affine number beside many others: not as good as the input."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return torch.cat([flat.mean(1, keepdim=True), flat.tanh()], dim=1)


class Squared(nn.Module):
    """Bends numbers above zero too."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x


def zeros(layer: nn.Linear) -> nn.Linear:
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class Residual(nn.Module):
    """With a gate of zero it hands its input on: what is added is switched off at first."""

    def __init__(self, gate: float) -> None:
        super().__init__()
        self.inner = nn.Linear(20, 20)
        self.gate = nn.Parameter(torch.full((), gate))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * self.inner(x).relu()


def prefix(*modules: nn.Module) -> Network:
    return Network("tried", {**{f"s{k}": module for k, module in enumerate(modules)}, "head": nn.Identity()})


def batch_norm(channels: int) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(channels)
    random = torch.Generator().manual_seed(3)
    made.running_mean = torch.randn(channels, generator=random) * 50
    made.running_var = torch.rand(channels, generator=random) + 0.01
    return made


AFFINE = {
    "flatten": (IMAGE, [nn.Flatten()]),
    "identity": (IMAGE, [nn.Identity()]),
    "linear": ((30,), [nn.Linear(30, 128)]),
    "narrow linear": ((30,), [nn.Linear(30, 2)]),
    "convolution": (IMAGE, [nn.Conv2d(3, 16, 3, stride=2, padding=1)]),
    "convolution, normalisation, pooling": (IMAGE, [nn.Conv2d(3, 16, 3), batch_norm(16), nn.AvgPool2d(2)]),
    "ten linear layers": ((30,), [nn.Linear(30, 30) for _ in range(10)]),
    "dropout": ((30,), [nn.Dropout(0.5), nn.Linear(30, 40)]),
    "transposed, padded, upsampled": (
        IMAGE,
        [nn.ConvTranspose2d(3, 4, 2), nn.ReflectionPad2d(1), nn.Upsample(scale_factor=2, mode="bilinear")],
    ),
    "a limit that no input reaches": ((30,), [nn.Linear(30, 40), nn.Hardtanh(-1e9, 1e9)]),
    "own tensors of one type": (IMAGE, [Quarter()]),
    "the input beside others": (IMAGE, [Beside(3)]),
    "a tuple with the input": (IMAGE, [Skip()]),
    "nothing at all": ((30,), [nn.Linear(30, 4), nn.Threshold(1e9, 0.0)]),
    # What the first exchange shares is then the input itself, whatever training makes of it later.
    "a branch that is closed at first": ((20,), [Residual(0.0)]),
    "a branch that hardly counts at first": ((20,), [Residual(1e-6)]),
    "a slope of one below zero at first": ((30,), [nn.Linear(30, 20), nn.PReLU(init=1.0)]),
    # Bends that are too small to hide anything.
    "a slope of nearly one": ((30,), [nn.Linear(30, 20), nn.LeakyReLU(0.9999)]),
    "hardly curved": ((30,), [nn.Linear(30, 20), nn.Softplus(beta=1e-5)]),
    # What is cut off is nothing that a picture, or a count, has.
    "a relu before the first weights": (IMAGE, [nn.ReLU(), nn.Flatten(), nn.Linear(192, 40)]),
    "pictures cut to their range": (IMAGE, [nn.Hardtanh(0.0, 1.0)]),
    "clipped where pictures never are": ((30,), [nn.Linear(30, 40), nn.Hardtanh(-20, 20)]),
}
NOT_AFFINE = {
    "relu": ((30,), [nn.Linear(30, 128), nn.ReLU()]),
    "relu6": ((30,), [nn.Linear(30, 128), nn.ReLU6()]),
    "clipped": ((30,), [nn.Linear(30, 40), nn.Hardtanh()]),
    "leaky": ((30,), [nn.Linear(30, 128), nn.LeakyReLU(0.5)]),
    "smooth": ((30,), [nn.Linear(30, 128), nn.GELU()]),
    "saturated": ((30,), [nn.Linear(30, 128), nn.Sigmoid()]),
    "maximum": (IMAGE, [nn.Conv2d(3, 8, 3), nn.MaxPool2d(2)]),
    "a relu long ago": ((30,), [nn.Linear(30, 64), nn.ReLU(), *(nn.Linear(64, 64) for _ in range(5))]),
    "layer normalisation": ((30,), [nn.LayerNorm(30)]),
    "a biased relu": ((30,), [nn.Linear(30, 8), nn.Softshrink(5.0)]),
    "one mean beside others": (IMAGE, [WithMean()]),
    "a branch that is open": ((20,), [Residual(1.0)]),
    "a square before the first weights": ((30,), [Squared()]),
    "zero weights at first": ((30,), [zeros(nn.Linear(30, 40)), nn.ReLU()]),
    "one unit": ((30,), [nn.Linear(30, 1), nn.ReLU()]),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_functions_are_known(name: str) -> None:
    shape, modules = AFFINE[name]
    assert prefix(*modules).is_affine(len(modules), shape)


@pytest.mark.parametrize("name", NOT_AFFINE)
def test_others_are_not_taken_for_affine(name: str) -> None:
    shape, modules = NOT_AFFINE[name]
    assert not prefix(*modules).is_affine(len(modules), shape)


def test_random_compositions_are_affine_until_the_first_nonlinearity() -> None:
    """A brute force over short networks: each layer is either affine or not, and so is what is before it. A ReLU bends
    nothing that is not negative, as long as nothing has moved it."""
    torch.manual_seed(0)
    kinds: dict[str, nn.Module] = {
        "linear": nn.Linear(12, 12),
        "norm": nn.BatchNorm1d(12),
        "relu": nn.ReLU(),
        "tanh": nn.Tanh(),
    }
    for names in itertools.product(kinds, repeat=3):
        net = prefix(*(kinds[name] for name in names))
        for stop in range(1, 4):
            before = names[:stop]
            moved = [place for place, name in enumerate(before) if name in ("linear", "norm")]
            bent = bool(moved) and "relu" in before[moved[0] :]
            assert net.is_affine(stop, (12,)) is not ("tanh" in before or bent), (names, stop)


@pytest.mark.parametrize("kind", [nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU])
@pytest.mark.parametrize(("inputs", "units"), [(4, 3), (12, 12), (30, 128), (784, 20)])
def test_whether_a_usual_layer_is_affine_does_not_depend_on_the_seed(
    kind: type[nn.Module], inputs: int, units: int
) -> None:
    """Else one seed of a comparison would be refused, and another not."""
    for seed in range(12):
        torch.manual_seed(seed)
        assert not prefix(nn.Linear(inputs, units), kind()).is_affine(2, (inputs,)), seed


def test_nothing_random_is_used_up_and_no_weight_is_changed() -> None:
    net = prefix(nn.Linear(30, 128), nn.BatchNorm1d(128), nn.ReLU())
    before, state = net.model(), torch.random.get_rng_state()
    net.is_affine(3, (30,))
    assert torch.equal(torch.random.get_rng_state(), state)
    after = net.model()
    assert all(torch.equal(after[part][name], leaf) for part in before for name, leaf in before[part].items())


@pytest.mark.parametrize("widths", [(128, 64), (20, 10), (64, 20), (64, 64)])
def test_the_default_is_the_first_that_narrows_or_else_the_narrowest(widths: tuple[int, int]) -> None:
    inputs, (first, second) = 30, widths
    net = Network.of(
        nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 3)
        )
    )
    bent = [(first, 3), (second, 4), (second, 5)]  # Numbers behind each stage that is not affine.
    narrow = [stop for size, stop in bent if size < inputs]
    wanted = narrow[0] if narrow else min(bent)[1]
    assert net.cut_for((inputs,)) == f"layer{wanted}"
    assert net.cut is None
    assert net.to(torch.float64).cut_for((inputs,)) == f"layer{wanted}"


def test_a_cut_that_somebody_chose_stays() -> None:
    module = nn.Sequential(OrderedDict(flat=nn.Flatten(), act=nn.Tanh(), head=nn.Linear(30, 3)))
    assert Network.of(module, cut="flat").cut_for((30,)) == "flat"
    assert Network.of(module).cut_for((30,)) == "act"
    shown = nn.Sequential(OrderedDict(flat=nn.Flatten(), act=nn.ReLU(), head=nn.Linear(30, 3)))
    assert Network.of(shown).cut_for((30,)) is None  # Of pictures that are not centred it hides nothing.


def test_without_a_nonlinearity_before_the_last_stage_there_is_no_default() -> None:
    assert Network.of(nn.Sequential(nn.Flatten(), nn.Linear(30, 3))).cut_for((30,)) is None
    assert Network.of(nn.Sequential(nn.Flatten(), nn.Linear(30, 3), nn.ReLU())).cut_for((30,)) is None
    assert Network.of(nn.Sequential(nn.Linear(30, 3))).cut_for((30,)) is None


@pytest.mark.parametrize(("inputs", "cut"), [(30, "hidden2"), (64, "hidden2"), (128, "hidden2"), (129, "hidden1")])
def test_the_perceptron_is_cut_by_the_same_rule(inputs: int, cut: str) -> None:
    built = networks.build("mlp", (inputs,), 3, 0)
    assert built.cut == cut
    assert Network("same", {stage: built.module(stage) for stage in built.stages}).cut_for((inputs,)) == cut


@pytest.mark.parametrize("name", ["lenet5", "small-cnn", "mcmahan-cnn", "harnet", "digits-cnn", "audionet"])
def test_networks_of_the_papers_keep_their_cuts_which_are_not_affine(name: str) -> None:
    shape = {"harnet": (1, 128, 6), "audionet": (1, 40, 174)}.get(name, (1, 28, 28))
    net = networks.build(name, shape, 4, 0)
    assert net.cut_for(shape) == net.cut
    assert not any(net.is_affine(stop, shape) for stop in range(1, len(net.stages)))
