"""FedGen for inputs: the generators of the specification, when they are trained, and that they learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.losses.features import sameness
from fewfed.methods.fedgen import FedGen
from fewfed.network import Network
from fewfed.networks.generator import INPUT_NOISE, conditioned, input_generator
from fewfed.phase import Cohort
from fewfed.plan import Plan, Random
from support import batch_of, context, digits, digits_federation, digits_network, gradients, job_of, run, trainable


@pytest.mark.parametrize(
    ("shape", "classes", "parameters"),
    [((3, 32, 32), 10, 1_109_891), ((2, 64, 344), 10, 1_390_562), ((1, 128, 3), 6, 372_257)],
)
def test_generators_have_the_specified_sizes(shape: tuple[int, ...], classes: int, parameters: int) -> None:
    assert input_generator(shape, classes, 0).parameter_count() == parameters


@pytest.mark.parametrize(
    "shape", [(3, 32, 32), (2, 64, 344), (1, 128, 3), (1, 28, 28), (1, 8, 8), (2, 9, 13), (1, 64, 9), (17,), (4, 5)]
)
def test_generators_make_inputs_of_any_shape(shape: tuple[int, ...]) -> None:
    net = input_generator(shape, 4, 0)
    code = conditioned(torch.randn(3, INPUT_NOISE), torch.tensor([0, 3, 1]), 4)
    for train in (True, False):
        assert net.apply(net.model(), code, train=train).shape == (3, *shape)


def test_first_weights_depend_on_the_seed_alone_and_torchs_stream_is_untouched() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    weights = [dict(tree.leaves(input_generator.__wrapped__((1, 8, 8), 10, seed).model())) for seed in (1, 1, 2)]
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not torch.equal(weights[0]["params/seed.conv.weight"], weights[2]["params/seed.conv.weight"])


def test_the_diversity_term_is_the_equation_and_has_finite_gradients() -> None:
    noise, output = np.random.default_rng(0).normal(size=(2, 5, 3))
    distances = [np.sqrt(np.square(v[:, None] - v[None]).mean(2)) for v in (noise, output)]
    expected = np.exp(-(distances[0] * distances[1]).mean())
    assert float(sameness(torch.tensor(noise), torch.tensor(output))) == pytest.approx(expected, abs=1e-5)
    alike = torch.ones(5, 3, requires_grad=True)
    value = sameness(torch.tensor(noise).float(), alike)
    assert value.item() == pytest.approx(1, abs=1e-5)
    assert torch.isfinite(torch.autograd.grad(value, alike)[0]).all()


def test_rounds_before_the_start_are_fedavg_and_later_ones_train_fifty_steps_on_the_server() -> None:
    federation = digits_federation(4, 12)
    ended = run(job_of(FedGen(start=1, steps=50, batch=32), federation), rounds=3, cohort=2)
    assert [[p.phase.name for p in v.phases] for v in ended.views] == [
        ["train"],
        ["generate", "train"],
        ["generate", "train"],
    ]
    generate, train = ended.views[1].phases
    assert (generate.record.steps, generate.record.traffic.up) == (50, 0)
    assert generate.phase.cohort is Cohort.SERVER
    assert "generator" not in ended.views[0].phases[0].shared
    assert "generator" in train.shared
    first, second = (view.phases[0].combined.values["generator"]["params"] for view in ended.views[1:])
    assert not torch.equal(first["out.conv.weight"], second["out.conv.weight"])
    plain = run(job_of("fedavg", federation), rounds=3, cohort=2)
    late = run(job_of(FedGen(start=3), federation), rounds=3, cohort=2)
    assert all(torch.equal(late.server["model"]["params"][n], v) for n, v in plain.server["model"]["params"].items())


def test_the_global_model_recognises_what_a_trained_generator_makes() -> None:
    federation = digits_federation(10, 40)
    job = job_of(FedGen(start=3, steps=100, batch=32), federation, training={"epochs": 3})
    ended = run(job, rounds=4, cohort=10)
    net, shared = digits_network(), ended.views[3].phases[0].shared
    y = torch.arange(200) % 10
    code = conditioned(Random(3).normal(200, INPUT_NOISE), y, 10)
    generator = input_generator((1, 8, 8), 10, 0)

    def right(model: dict[str, object]) -> float:
        made = generator.apply(model, code, train=False)
        return float((net.apply(shared["model"], made, train=False).argmax(1) == y).float().mean())

    assert right(ended.server["generator"]) > right(generator.model()) + 0.3


def test_a_synthetic_batch_is_added_and_the_generator_is_only_read() -> None:
    net, (train, _) = digits_network(), digits()
    data = train.rows(torch.arange(6))
    method = FedGen(start=0, weight=2.0)
    generator = input_generator((1, 8, 8), 10, 0).model()
    ctx = context(net, data, {"model": net.model(), "generator": generator})
    before = tree.clone(generator)
    draw = method.draw(Random(0), ctx, 6)
    work = trainable(net.model())
    terms = method.loss(work, ctx, batch_of(data, draw))
    code = conditioned(draw["noise"], draw["label"], 10)
    with torch.no_grad():
        made = input_generator((1, 8, 8), 10, 0).apply(before, code, train=False)
        expected = torch.nn.functional.cross_entropy(net.apply(net.model(), made), draw["label"])
    assert terms["synthetic"].item() == pytest.approx(2 * float(expected), abs=1e-5)
    assert gradients(terms["synthetic"], work)["conv1.conv.weight"].abs().max() > 0
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(tree.leaves(before), tree.leaves(generator), strict=True))


def test_running_statistics_follow_real_rows_alone() -> None:
    """By hand, layer by layer, with synthetic rows that are much larger than real ones."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(1, 3, 3, dtype=torch.float64), nn.BatchNorm2d(3, dtype=torch.float64)
    head = nn.Linear(3 * 36, 10, dtype=torch.float64)
    stages = {"body": nn.Sequential(conv, norm, nn.ReLU()), "head": nn.Sequential(nn.Flatten(), head)}
    net, (train, _) = Network("small", stages), digits()
    data = Examples(train.x[:6].double(), train.y[:6])
    source = input_generator((1, 8, 8), 10, 0, torch.float64)
    generator = source.model()
    generator["buffers"]["out.norm.running_var"] *= 1e-4
    ctx = context(net, data, {"model": net.model(), "generator": generator}, plan=Plan(0, 8, dtype=torch.float64))
    method, work = FedGen(start=0, weight=0.5), trainable(net.model())
    drawn = method.draw(Random(0, dtype=torch.float64), ctx, 6)
    terms = method.loss(work, ctx, batch_of(data, drawn))

    code = torch.cat([drawn["noise"], torch.eye(10, dtype=torch.float64)[drawn["label"]]], 1)
    made = source.apply(generator, code, train=False)
    assert float(made.abs().mean()) > 20 * float(data.x.mean())

    def scores(x: Tensor) -> tuple[Tensor, Tensor]:
        before = torch.nn.functional.conv2d(x, conv.weight, conv.bias)
        mean, variance = before.mean((0, 2, 3)), before.var((0, 2, 3), unbiased=False)
        shaped = (before - mean[:, None, None]) / (variance + 1e-5).sqrt()[:, None, None]
        return before, shaped.relu().flatten(1) @ head.weight.T + head.bias

    (real, right), (_, imagined) = scores(data.x), scores(made)
    expected = {"task": cross_entropy(right, data.y), "synthetic": 0.5 * cross_entropy(imagined, drawn["label"])}
    assert {name: value.item() for name, value in terms.items()} == pytest.approx(
        {name: value.item() for name, value in expected.items()}, abs=1e-10
    )
    found = work["buffers"]
    assert torch.allclose(found["body.1.running_mean"], 0.1 * real.mean((0, 2, 3)), rtol=0, atol=1e-12)
    assert torch.allclose(found["body.1.running_var"], 0.9 + 0.1 * real.var((0, 2, 3)), rtol=0, atol=1e-12)
