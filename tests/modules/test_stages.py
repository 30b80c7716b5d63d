"""Stages of a user's own module are found only where they do what the module does; else it stays in one piece."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fewfed.errors import ConfigError
from fewfed.network import Network

ROWS = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(3))

Forward = Callable[[Any, Tensor], Any]


def net(forward: Forward | None = None, **children: nn.Module) -> nn.Module:
    """A module with these children, applied as `forward` says."""
    body: dict[str, Any] = {} if forward is None else {"forward": forward}
    made: nn.Module = type("Own", (nn.Module,), body)()
    for name, child in children.items():
        made.add_module(name, child)
    return made


def conv(inputs: int = 1, outputs: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


class Block(nn.Module):
    """A residual block, as those of a ResNet."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = conv(width, width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)) + x)


def resnet() -> nn.Module:
    """The structure of torchvision's ResNet: children in order, but for a flatten that is no child."""

    def forward(own: Any, x: Tensor) -> Any:
        x = own.maxpool(own.relu(own.bn1(own.conv1(x))))
        return own.fc(torch.flatten(own.avgpool(own.layer2(own.layer1(x))), 1))

    return net(
        forward,
        conv1=conv(1, 4),
        bn1=nn.BatchNorm2d(4),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(2),
        layer1=nn.Sequential(Block(4), Block(4)),
        layer2=nn.Sequential(nn.Conv2d(4, 6, 1), Block(6)),
        avgpool=nn.AdaptiveAvgPool2d(1),
        fc=nn.Linear(6, 10),
    )


def mobilenet() -> nn.Module:
    """The structure of torchvision's MobileNetV2: pools and flattens in between, and drops after that."""

    def forward(own: Any, x: Tensor) -> Any:
        return own.classifier(F.adaptive_avg_pool2d(own.features(x), (1, 1)).flatten(1))

    features = nn.Sequential(conv(), nn.BatchNorm2d(3), nn.ReLU6(inplace=True))
    return net(forward, features=features, classifier=nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 10)))


def convnext() -> nn.Module:
    """A module that has a child called `stages`, as timm's ConvNeXt."""
    return net(
        lambda own, x: own.head(own.stages(own.stem(x))),
        stem=conv(),
        stages=nn.Sequential(Block(3), Block(3)),
        head=nn.Sequential(nn.Flatten(), nn.Linear(192, 10)),
    )


def listed() -> nn.Module:
    def forward(own: Any, x: Tensor) -> Tensor:
        for part in own.parts:
            x = part(x)
        return x

    return net(forward, parts=nn.ModuleList([conv(), nn.Flatten(), nn.Linear(192, 10)]))


def around(inside: nn.Module) -> nn.Module:
    return net(lambda own, x: own.model(x), model=inside)


def same_module() -> nn.Module:
    """A ReLU that is applied twice: `named_children` shows it once."""
    relu = nn.ReLU()
    return nn.Sequential(conv(), relu, conv(3, 2), relu, nn.Flatten(), nn.Linear(128, 10))


RESNET = "conv1 bn1 relu maxpool layer1.0 layer1.1 layer2.0 layer2.1 avgpool flatten fc"

FOUND: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "resnet": (resnet, RESNET),
    "mobilenet": (mobilenet, "features.0 features.1 features.2 pool classifier.0 classifier.1"),
    "convnext": (convnext, "stem stages.0 stages.1 head.0 head.1"),
    "a list of modules": (listed, "parts.0 parts.1 parts.2"),
    "the same module twice": (same_module, "layer1 layer2 layer3 layer4 layer5 layer6"),
}


@pytest.mark.parametrize("case", FOUND)
def test_stages_are_found_and_do_what_the_module_does(case: str) -> None:
    make, expected = FOUND[case]
    torch.manual_seed(0)
    module = make()
    found = Network.of(module, example=ROWS)
    assert " ".join(found.stages) == expected
    assert not found.one_piece
    for train in (False, True):
        x, model = torch.randn(6, 1, 8, 8), found.model()
        for cut in range(len(found.stages) + 1):
            torch.manual_seed(1)
            features = found.apply(model, x, stop=cut, train=train)
            ours = found.apply(model, features, start=cut, train=train)
            torch.manual_seed(1)
            assert torch.equal(ours, module.train(train)(x)), cut


def test_a_module_around_another_has_its_stages() -> None:
    inner = Network.of(resnet(), example=ROWS)
    outer = Network.of(around(around(resnet())), example=ROWS)
    assert outer.stages == tuple(name if name == "flatten" else f"model.model.{name}" for name in inner.stages)


def test_a_part_that_was_opened_still_names_a_cut() -> None:
    found = Network.of(resnet(), example=ROWS)
    assert found.position("layer1") == 6
    assert found.stage_at("layer2") == "layer2.1"
    assert found.position("layer1.0") == 5
    assert found.position("11") == 11
    with pytest.raises(ConfigError, match="unknown stage of network 'custom' 'layer'"):
        found.position("layer")


def skips(own: Any, x: Tensor) -> Any:
    return own.last((own.first(x) + x).flatten(1))


def frozen_body(own: Any, x: Tensor) -> Any:
    with torch.no_grad():
        x = own.first(x)
    return own.last(x.flatten(1))


def noisy(own: Any, x: Tensor) -> Any:
    return own.last(F.dropout(own.first(x), 0.5, own.training).flatten(1))


def clipped(own: Any, x: Tensor) -> Any:
    return own.last(own.first(x).clamp(-3, 3).flatten(1))


def twice(own: Any, x: Tensor) -> Any:
    return own.last(own.first(own.first(x)).flatten(1))


def plain(own: Any, x: Tensor) -> Any:
    return own.last(own.first(x).flatten(1))


class Alone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight


class Overwrites(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2)


ONE_PIECE: dict[str, Callable[[], nn.Module]] = {
    "a skip around a child": lambda: net(skips, first=conv(1, 1), last=nn.Linear(64, 10)),
    "no gradient for a child": lambda: net(frozen_body, first=conv(1, 1), last=nn.Linear(64, 10)),
    "dropout that is no child, seen in train mode only": lambda: net(noisy, first=conv(1, 1), last=nn.Linear(64, 10)),
    "a limit that only large inputs reach": lambda: net(clipped, first=conv(1, 1), last=nn.Linear(64, 10)),
    "a child applied twice": lambda: net(twice, first=conv(1, 1), last=nn.Linear(64, 10)),
    "children defined in another order": lambda: net(plain, last=nn.Linear(64, 10), first=conv(1, 1)),
    "a child that is not used": lambda: net(plain, first=conv(1, 1), unused=nn.Tanh(), last=nn.Linear(64, 10)),
    "no children": lambda: Alone(),
    "a stage that changes its input": lambda: nn.Sequential(conv(), Overwrites(), nn.Flatten(), nn.Linear(192, 10)),
    "transformer tokens": lambda: net(
        lambda own, x: own.head(own.body(torch.cat([x.flatten(2).mT, x.flatten(2).mT], 1).expand(-1, -1, 4))[:, 0]),
        body=nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
        head=nn.Linear(4, 10),
    ),
}


@pytest.mark.parametrize("case", ONE_PIECE)
def test_anything_else_stays_in_one_piece_that_does_what_the_module_does(case: str) -> None:
    torch.manual_seed(0)
    module = ONE_PIECE[case]()
    whole = Network.of(module, example=ROWS)
    assert whole.stages == ("whole",)
    assert list(whole.model()["params"]) == [name for name, _ in module.named_parameters()]
    for train in (False, True):
        torch.manual_seed(1)
        ours = whole.apply(whole.model(), ROWS.clone(), train=train)
        torch.manual_seed(1)
        # Attention picks its kernel by what asks for gradients, and rounds accordingly.
        assert torch.allclose(ours, module.train(train)(ROWS.clone()), atol=1e-6)
    for ask in (lambda: whole.penultimate, lambda: whole.position("whole"), lambda: whole.position(1)):
        with pytest.raises(ConfigError, match=r"needs stages, but network 'custom' is in one piece, since .*'stages'"):
            ask()


def test_a_mistake_of_the_search_would_be_seen() -> None:
    """What tells stages from other stages is each of: output, gradients, draws, large inputs, train mode."""
    alike = net(plain, first=conv(1, 1), last=nn.Linear(64, 10))
    assert Network.of(alike, example=ROWS).stages == ("first", "flatten", "last")


def test_without_an_example_only_what_a_module_says_is_believed() -> None:
    whole = Network.of(resnet())
    assert whole.one_piece.startswith("no example")
    assert whole.is_random  # Nobody has looked, and seeding what draws nothing does no harm.
    assert Network.of(same_module()).penultimate == 5


def test_draws_are_seen_whoever_makes_them() -> None:
    class Own(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.randn_like(x) if self.training else x

    drawing = nn.Sequential(Own(), nn.Flatten(), nn.Linear(64, 10))
    assert Network.of(drawing, example=ROWS).is_random
    assert not Network.of(resnet(), example=ROWS).is_random


def test_looking_changes_neither_the_module_nor_anybodys_random_numbers() -> None:
    module = mobilenet().eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    rows, state, of_python = ROWS.clone(), torch.get_rng_state(), random.getstate()
    Network.of(module, example=rows)
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == of_python
    assert torch.equal(rows, ROWS)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert not module.training
    assert next(part for part in module.modules() if isinstance(part, nn.ReLU6)).inplace
    assert all(parameter.grad is None for parameter in module.parameters())


def test_rows_that_are_numbers_of_words_need_not_be_noise() -> None:
    module = net(lambda own, x: own.last(own.first(x.long()).mean(1)), first=nn.Embedding(20, 4), last=nn.Linear(4, 3))
    words = torch.randint(20, (9, 6)).float()
    assert Network.of(module, example=words).one_piece


def declaring(stages: Any, **children: nn.Module) -> nn.Module:
    made = net(plain, **(children or {"first": conv(1, 1), "last": nn.Linear(64, 10)}))
    made.stages = stages
    return made


def test_declared_stages_may_be_names_parts_of_parts_or_the_modules_themselves() -> None:
    first, last = nn.Sequential(conv(1, 1), nn.ReLU()), nn.Linear(64, 10)
    module = declaring([first[0], "first.1", last], first=first, last=last)
    assert Network.of(module, example=ROWS).stages == ("first.0", "first.1", "flatten", "last")
    again = net(lambda own, x: own.act(own.one(own.act(x))).flatten(1), one=conv(1, 1), act=nn.Tanh())
    again.stages = ["act", "one", "act"]
    with pytest.raises(ConfigError, match="are not the module"):  # A flatten at the end is no joint.
        Network.of(again, example=ROWS)
    again.stages = ["act", "one", "act", "flat"]
    again.flat = nn.Flatten()
    assert Network.of(again, example=ROWS).stages == ("act", "one", "act_2", "flat")


@pytest.mark.parametrize(
    ("stages", "mention"),
    [
        ("first", "Own.stages of network 'custom' is a text: expected a list"),
        (["first", nn.ReLU()], "has a ReLU that is no part of the module"),
        ([3, 4, 6], "has 3: expected the names of its children"),
        (["first", "lsat"], "unknown stage of Own 'lsat': did you mean 'last'"),
        (["last", "first"], "Own.stages of network 'custom' are not the module"),
        (["first"], "are not the module"),
        ([], "no stages|are not the module"),
    ],
)
def test_wrong_declarations_are_refused(stages: Any, mention: str) -> None:
    with pytest.raises(ConfigError, match=mention):
        Network.of(declaring(stages), example=ROWS)


def test_a_number_called_stages_declares_nothing() -> None:
    assert Network.of(declaring(4), example=ROWS).stages == ("first", "flatten", "last")


def locked() -> nn.Module:
    made = net(plain, first=conv(1, 1), last=nn.Linear(64, 10))
    made.lock = threading.Lock()
    return made


def two_answers(own: Any, x: Tensor) -> Any:
    scores = plain(own, x)
    return (scores, scores) if own.training else scores


def forgotten_mode(own: Any, x: Tensor) -> Any:
    return F.dropout(plain(own, x))


def fails(own: Any, x: Tensor) -> Any:
    raise KeyError("gone")


UNUSABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "a class": (lambda: nn.Linear, "is the class Linear: expected an object of it"),
    "no module": (lambda: [nn.Linear(2, 2)], "is a list: expected an nn.Module"),
    "lazy layers": (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), "lazy layers.*called on an input once"),
    "TorchScript": (lambda: torch.jit.script(nn.Linear(2, 2)), "TorchScript"),
    "what cannot be copied": (locked, "cannot be copied: TypeError"),
    "two answers": (
        lambda: net(two_answers, first=conv(1, 1), last=nn.Linear(64, 10)),
        "answers with a tuple in train mode: expected one tensor",
    ),
    "draws in eval mode": (
        lambda: net(forgotten_mode, first=conv(1, 1), last=nn.Linear(64, 10)),
        r"draws random numbers in eval mode too.*training=self\.training",
    ),
    "an error": (lambda: net(fails), r"cannot take inputs of shape \(1, 8, 8\).*KeyError.*in fails, test_stages.py"),
}


class Replaces(nn.Module):
    """Keeps a running mean, in a tensor that is new each time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(64))
        self.last = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        x = x.flatten(1)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.last(x - self.mean)


class Recurrent(nn.Module):
    """Its layer keeps a list of its weights beside its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.LSTM(8, 6, num_layers=2, batch_first=True), nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Any:
        return self.last(self.cell(x.squeeze(1))[0][:, -1])


def test_weights_are_those_of_the_model_and_buffers_change_in_place() -> None:
    with pytest.raises(ConfigError, match=r"replaces its buffer 'mean'.*self\.mean\.copy_"):
        Network.of(Replaces(), example=ROWS)
    recurrent = Network.of(Recurrent(), example=ROWS)
    model = recurrent.model()
    for leaf in model["params"].values():
        leaf.requires_grad_()
    grads = torch.autograd.grad(recurrent.apply(model, ROWS).sum(), list(model["params"].values()))
    assert all(bool(grad.any()) for grad in grads)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("case", UNUSABLE)
def test_what_cannot_be_used_is_refused_with_a_sentence(case: str) -> None:
    make, mention = UNUSABLE[case]
    with pytest.raises(ConfigError, match=mention):
        Network.of(make(), example=ROWS)


def test_random_modules_are_never_taken_apart_wrongly() -> None:
    """Modules put together at random: whatever is found, it computes what the module computes."""
    draw = random.Random(0)
    between: list[Callable[[Tensor], Tensor]] = [torch.relu, torch.sigmoid, *[lambda x: x] * 6]
    found = 0
    for seed in range(25):
        torch.manual_seed(seed)
        acts = [draw.choice(between) for _ in range(4)]
        children = {
            f"part{n}": draw.choice([nn.Tanh(), nn.BatchNorm2d(1), conv(1, 1), nn.Identity()]) for n in range(4)
        }

        def forward(own: Any, x: Tensor, acts: Any = acts, names: Any = tuple(children)) -> Any:
            for name, act in zip(names, acts, strict=True):
                x = act(getattr(own, name)(x))
            return own.last(x.flatten(1))

        module = net(forward, **children, last=nn.Linear(64, 10))
        made = Network.of(module, example=ROWS)
        found += not made.one_piece
        x = 3 * torch.randn(7, 1, 8, 8)
        for train in (True, False):
            assert torch.equal(made.apply(made.model(), x, train=train), module.train(train)(x)), seed
            module.load_state_dict(made.state_dict(made.model()))
    assert 5 < found < 20
