"""The bottleneck's penalty against a Gaussian computed by hand, its noise in training and on the packets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from packets import sent

from fewfed.errors import ConfigError
from fewfed.method import Batch
from fewfed.methods.bottlenecked import Bottlenecked, class_width
from fewfed.methods.flea import FLea
from fewfed.phase import Clock
from support import context, digits, digits_federation, digits_network, job_of


def test_the_penalty_is_the_gaussian_entropy_of_each_class_above_that_of_the_noise() -> None:
    """h of N(0, v + s²) minus h of N(0, s²), a feature and a class at a time, by numpy."""
    random = np.random.default_rng(5)
    features, y = random.normal(size=(40, 6)) * [1, 2, 3, 4, 0, 9], random.integers(0, 4, 40)

    def entropy(variance: float) -> float:
        return 0.5 * math.log(2 * math.pi * math.e * variance)

    noise = 0.3
    each = [[entropy(features[y == c, j].var() + noise**2) - entropy(noise**2) for j in range(6)] for c in range(4)]
    expected = sum((y == c).mean() * np.mean(each[c]) for c in range(4))
    found = class_width(torch.from_numpy(features), torch.from_numpy(y), 10, noise)
    assert found.item() == pytest.approx(expected, rel=1e-9)


def test_it_bounds_what_noisy_features_tell() -> None:
    """One Gaussian class, one feature: I(x; z) of x ~ N(0, v), z = x + noise is log(1 + v/noise²)/2 exactly."""
    x = torch.randn(200_000, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    assert class_width(x, torch.zeros(len(x), dtype=torch.long), 3, 0.5).item() == pytest.approx(
        0.5 * math.log(1 + 4 / 0.25), rel=0.01
    )


def test_classes_of_one_row_and_equal_rows_have_no_width_and_finite_gradients() -> None:
    features = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    width = class_width(features, torch.tensor([0, 1, 2, 2]), 5, 0.1)
    (gradient,) = torch.autograd.grad(width, features)
    assert width.item() == 0
    assert torch.isfinite(gradient).all()


def test_training_sees_the_noise_at_the_cut_and_nowhere_else() -> None:
    method = Bottlenecked(FLea(distil=0.0, decorrelate=0.0), weight=0.0, noise=0.7)
    phase, net = method.phases(Clock(0, 2, 1))[0], digits_network()
    rows = digits()[0].rows(torch.arange(16))
    ctx = context(net, rows, phase=phase, state={"inner": {}, "own": {}})
    drawn = phase.does.draw(ctx.plan.random(0, "train", 0), ctx, 16)
    terms = phase.does.loss(phase.does.begin(ctx), ctx, Batch(rows.x, rows.y, drawn))
    model = net.model()
    features = net.apply(model, rows.x, stop=1)
    assert drawn["own"].shape == features.shape
    output = net.apply(model, features + 0.7 * drawn["own"], start=1)
    assert terms["task"].item() == pytest.approx(torch.nn.functional.cross_entropy(output, rows.y).item(), rel=1e-5)
    again = phase.does.draw(ctx.plan.random(0, "train", 0), ctx, 16)
    assert torch.equal(drawn["own"], again["own"])


def test_what_is_sent_has_the_same_noise_on_top() -> None:
    found = {}
    for noise in (0.0, 0.5):
        job = job_of(Bottlenecked(FLea(share=1.0), weight=0.0, noise=noise), digits_federation(3, 30))
        packets, _ = sent(job)
        phase, shared, _ = packets[0]
        found[noise] = torch.cat([packet.arrays["features"] for _, _, packet in packets])
        rows = [job.federation.examples(packet.sender) for _, _, packet in packets]
        # Both trained otherwise: compare with features of the model that was broadcast.
        clean = torch.cat([job.net.apply(shared["model"], each.x, stop=1, train=False) for each in rows])
        order = torch.cat([
            phase.does.origins(
                context(job.net, each, shared, phase=phase, client=packet.sender, state={"inner": {}, "own": {}})
            )[:, 0] + 30 * number
            for number, (each, (_, _, packet)) in enumerate(zip(rows, packets, strict=True))
        ])  # fmt: skip
        difference = found[noise] - clean[order]
        assert float(difference.std()) == pytest.approx(noise, rel=0.03, abs=1e-5)


def test_it_narrows_classes() -> None:
    widths = {}
    for weight in (0.0, 5.0):
        method = Bottlenecked(FLea(decorrelate=0.0), weight=weight, noise=0.1)
        job = job_of(method, digits_federation(3, 40), training={"epochs": 5, "lr": 0.01})
        model = method.predictor(sent(job, rounds=2)[1].server, {})
        rows = digits()[1]
        features = job.net.apply(model, rows.x, stop=1, train=False).flatten(1)
        widths[weight] = float(class_width(features, rows.y, 10, 0.1))
    assert widths[5.0] < 0.8 * widths[0.0]


def test_a_penalty_without_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a noise above 0, or weight = 0"):
        job_of(Bottlenecked(FLea(), noise=0.0)).check()
    job_of(Bottlenecked(FLea(), noise=0.0, weight=0.0)).check()
