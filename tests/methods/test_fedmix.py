from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fewfed.data.examples import Examples
from fewfed.errors import ConfigError
from fewfed.method import Batch, Context, Setup
from fewfed.methods.fedmix import FedMix
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.phase import Clock
from fewfed.plan import Plan, Random
from fewfed.tasks.classification import Classification
from fewfed.tasks.regression import Regression
from fewfed.tree import Tree
from support import (
    batch_of,
    context,
    digits,
    digits_federation,
    digits_network,
    gradients,
    job_of,
    linear_network,
    run,
    same,
    total,
    trainable,
)


def sent_by(method: FedMix, data: Examples, net: Network) -> Tree:
    """What a client with these rows uploads before round 1."""
    setup = method.phases(Clock(0, 3, 1))[0]
    ctx = context(net, data, {}, phase=setup)
    return setup.does.end(setup.does.begin(ctx), ctx).upload


def fixture_step(values: dict[str, Any]) -> tuple[Context, Tree, Batch]:
    net = linear_network(values["W"])
    data = Examples(torch.tensor(values["x"], dtype=torch.float64), torch.tensor(values["y"]))
    shared = {
        "model": net.model(),
        "mean_x": torch.tensor([values["x_bar"]], dtype=torch.float64),
        "mean_y": torch.tensor([values["y_bar"]], dtype=torch.float64),
    }
    ctx = context(net, data, shared, task=Classification(3))
    return ctx, trainable(net.model()), batch_of(data, {"row": torch.tensor([0]), "lam": torch.tensor([0.5])})


def test_trap_38_the_third_term_is_divided_by_the_batch_once(flea_values: dict[str, Any]) -> None:
    values = flea_values["fedmix_taylor"]
    ctx, work, batch = fixture_step(values)
    method = FedMix(form="taylor", weight=values["lambda"])
    terms = method.loss(work, ctx, batch)
    found = {name: float(value.detach()) for name, value in terms.items()}
    assert found["task"] == pytest.approx(values["l1"], abs=1e-6)
    assert found["their_label"] == pytest.approx(values["l2"], abs=1e-6)
    assert found["their_input"] == pytest.approx(values["l3_correct_scaling"], abs=1e-6)
    assert found["their_input"] == pytest.approx(2 * values["l3_if_divided_twice_by_batch"], abs=1e-6)
    assert float(total(method, terms).detach()) == pytest.approx(values["total"], abs=1e-6)


def test_trap_31_the_third_term_is_the_mean_over_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    data = Examples(torch.randn(4, 2, generator=generator, dtype=torch.float64), torch.tensor([0, 2, 1, 2]))
    mean_x = torch.tensor([[0.4, -0.7]], dtype=torch.float64)
    shared = {"mean_x": mean_x, "mean_y": torch.full((1, 3), 1 / 3, dtype=torch.float64)}
    net = linear_network(weight.tolist(), dtype=torch.float64)
    ctx = context(net, data, shared, task=Classification(3))
    lam = 0.2
    draw = {"row": torch.tensor([0]), "lam": torch.tensor([0.5])}
    found = FedMix(form="taylor", weight=lam).loss(trainable(net.model()), ctx, batch_of(data, draw))["their_input"]
    # The gradient of a row's cross-entropy under a linear model is (softmax − label) · W.
    probability = torch.softmax((1 - lam) * data.x @ weight.T, 1)
    slopes = (probability - torch.nn.functional.one_hot(data.y, 3)) @ weight
    assert float(found.detach()) == pytest.approx(float((lam * (1 - lam) * (slopes @ mean_x[0])).mean()), abs=1e-12)


def test_the_mixup_form_is_the_mixture_the_expansion_approximates(flea_values: dict[str, Any]) -> None:
    values = flea_values["fedmix_taylor"]
    ctx, work, batch = fixture_step(values)
    draw = {"row": torch.tensor([0, 0]), "lam": torch.tensor([1 - values["lambda"]], dtype=torch.float64)}
    terms = FedMix().loss(work, ctx, batch._replace(drawn=draw))
    assert float(terms["task"].detach()) == pytest.approx(values["true_mixup_with_the_same_inputs"], abs=1e-6)
    assert set(terms) == {"task"}


def test_the_expansion_is_differentiated_through_its_own_gradient(flea_values: dict[str, Any]) -> None:
    ctx, work, batch = fixture_step(flea_values["fedmix_taylor"])
    method = FedMix(form="taylor", weight=0.3)

    def loss_at(weight: Tensor) -> Tensor:
        return total(method, method.loss({"params": {"head.weight": weight}, "buffers": {}}, ctx, batch))

    weight = work["params"]["head.weight"]
    assert torch.autograd.gradcheck(loss_at, (weight,))
    assert bool(gradients(method.loss(work, ctx, batch)["their_input"], work)["head.weight"].any())


def test_no_weight_on_others_is_the_plain_loss(flea_values: dict[str, Any]) -> None:
    ctx, work, batch = fixture_step(flea_values["fedmix_taylor"])
    method = FedMix(form="taylor", weight=0.0)
    plain = method.loss(work, ctx, batch._replace(drawn={}))["task"]
    assert float(total(method, method.loss(work, ctx, batch)).detach()) == pytest.approx(float(plain.detach()))


def as_released(layers: nn.Sequential, x: Tensor, y: Tensor, mean_x: Tensor, mean_y: Tensor, lam: float) -> Tensor:
    """The order of FLea's released step: an unmixed pass whose loss nobody uses, then the loss of the mixture."""
    layers.train()
    nn.functional.cross_entropy(layers(x), y)
    target = lam * nn.functional.one_hot(y, 10) + (1 - lam) * mean_y
    return -(torch.log_softmax(layers(lam * x + (1 - lam) * mean_x), 1) * target).sum() / len(x)


@pytest.mark.parametrize("unmixed", [True, False])
def test_batchnorm_sees_the_unmixed_batch_first_and_nothing_else_does(unmixed: bool) -> None:
    torch.manual_seed(2)
    layers = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    ).double()
    net, data = Network.of(layers), digits()[0].rows(torch.arange(8))
    x, others = data.x.double(), digits()[0].x[20:23].double()
    mean_y = torch.eye(10, dtype=torch.float64)[[1, 5, 7]]
    ctx = context(net, Examples(x, data.y), {"mean_x": others, "mean_y": mean_y})
    work, row, lam = trainable(net.model()), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]), 0.3
    drawn = {"row": row, "lam": torch.tensor([lam], dtype=torch.float64)}
    method = FedMix(unmixed_pass=unmixed)
    found = method.loss(work, ctx, Batch(x, data.y, drawn))["task"]
    expected = as_released(layers, x, data.y, others[row], mean_y[row], lam)
    assert torch.allclose(found, expected)
    slopes = torch.autograd.grad(expected, list(layers.parameters()))
    assert all(torch.allclose(a, b) for a, b in zip(gradients(found, work).values(), slopes, strict=True))
    for name in ("running_mean", "running_var"):
        close = torch.allclose(work["buffers"][f"layer2.{name}"], getattr(layers[1], name))
        assert close is unmixed


def test_running_statistics_move_once_a_step_in_the_expansion() -> None:
    net, (train, _) = digits_network(), digits()
    data = train.rows(torch.arange(8))
    shared = {"model": net.model(), "mean_x": train.x[:2], "mean_y": torch.full((2, 10), 0.1)}
    work, reference = trainable(net.model()), net.model()
    draw = {"row": torch.tensor([1]), "lam": torch.tensor([0.5])}
    FedMix(form="taylor", weight=0.25).loss(work, context(net, data, shared), batch_of(data, draw))
    net.apply(reference, 0.75 * data.x)
    assert all(torch.allclose(work["buffers"][name], value) for name, value in reference["buffers"].items())


def test_a_client_sends_means_of_whole_groups_and_nothing_else() -> None:
    data = digits()[0].rows(torch.arange(27))
    sent = sent_by(FedMix(group=10), data, digits_network())
    assert set(sent) == {"mean_x", "mean_y"}
    assert sent["mean_x"].shape == (2, 1, 8, 8)
    assert sent["mean_y"].shape == (2, 10)
    assert torch.allclose(sent["mean_y"].sum(1), torch.ones(2))
    whole = sent_by(FedMix(group=27), data, digits_network())
    assert torch.allclose(whole["mean_x"][0], data.x.mean(0), atol=1e-6)
    assert torch.allclose(whole["mean_y"][0] * 27, torch.bincount(data.y, minlength=10).float(), atol=1e-5)
    none = sent_by(FedMix(group=28), data, digits_network())
    assert none["mean_x"].shape == (0, 1, 8, 8)
    assert none["mean_y"].shape == (0, 10)


def test_labels_of_a_mean_are_those_of_its_inputs() -> None:
    """Inputs that are their own one-hot labels must give equal means."""
    y = torch.arange(30) % 10
    data = Examples(torch.eye(10)[y], y)
    sent = sent_by(FedMix(group=4), data, linear_network([[0.0] * 10]))
    assert torch.allclose(sent["mean_x"], sent["mean_y"])


def test_trap_23_everybody_meets_everybodys_means_from_the_first_round() -> None:
    recorder = run(job_of("fedmix", digits_federation(10, [9, 10, 11, 12, 19, 20, 25, 30, 8, 10])), rounds=2)
    assert [result.phase.name for result in recorder.views[0].phases] == ["setup", "train"]
    assert [result.phase.name for result in recorder.views[1].phases] == ["train"]
    setup = recorder.views[0].phases[0]
    assert setup.combined.clients == tuple(range(10))
    for view in recorder.views:
        train = view.phases[-1]
        assert len(train.shared["mean_x"]) == len(train.shared["mean_y"]) == 0 + 1 + 1 + 1 + 1 + 2 + 2 + 3 + 0 + 1
    assert setup.record.rows == {"mean_x": 12, "mean_y": 12}
    assert setup.record.traffic.up == 12 * (64 + 10) * 4


def test_one_weight_a_batch_and_one_mean_a_row() -> None:
    net, data = digits_network(), digits()[0].rows(torch.arange(8))
    shared = {"mean_x": torch.zeros(5, 1, 8, 8), "mean_y": torch.zeros(5, 10)}
    ctx = context(net, data, shared)
    draw = FedMix().draw(Random(0, "x"), ctx, 8)
    assert draw["lam"].shape == (1,)
    assert draw["row"].shape == (8,)
    assert set(draw["row"].tolist()) == set(range(5))
    assert FedMix(form="taylor").draw(Random(0, "x"), ctx, 8)["row"].shape == (1,)


def test_without_any_mean_it_is_fedavg_bit_for_bit() -> None:
    federation = digits_federation(6, 9)
    mixed, plain = run(job_of("fedmix", federation)), run(job_of("fedavg", federation))
    assert same(mixed.server["model"], plain.server["model"])


@pytest.mark.parametrize("spec", ["fedmix", "fedmix:flea", "fedmix:taylor"])
def test_every_preset_trains_without_a_failed_client(spec: str) -> None:
    recorder = run(job_of(spec), rounds=2)
    assert all(metrics["failed"] == [] for metrics in recorder.metrics)


def test_presets_choose_the_form() -> None:
    assert choose("fedmix").method == choose("fedmix:flea").method == FedMix(form="mixup", unmixed_pass=True)
    assert choose("fedmix:taylor").method == FedMix(form="taylor")


def test_labels_must_be_classes() -> None:
    with pytest.raises(ConfigError, match="expected a classification task"):
        FedMix().check(Setup(digits_network(), Regression(), Plan(0, 8), 3, (1, 8, 8)))
