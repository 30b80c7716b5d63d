"""MoEx: exchanged moments against their definition, with gradients, and the label that goes with them."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy
from wrapper_steps import first_turn, training

from fewfed.errors import ConfigError
from fewfed.methods.moex import MoEx
from support import batch_of, digits_federation, digits_network, gradients, job_of, run, same, trainable


def test_the_loss_and_its_gradient_are_those_of_exchanged_moments() -> None:
    net, data = digits_network(), digits_federation().examples(0)
    order = torch.arange(len(data)).roll(1)
    draw = {"inner": {}, "own": {"order": order, "on": torch.tensor(True)}}
    work, model = trainable(net.model()), trainable(net.model())
    method = MoEx(lam=0.7)
    ours = training(method).loss(work, first_turn(method, net, data), batch_of(data, draw))["task"]
    features = net.apply(model, data.x, stop=1)
    mean, deviation = features.mean(1, keepdim=True), (features.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
    exchanged = (features - mean) / deviation * deviation[order] + mean[order]
    output = net.apply(model, exchanged, start=1)
    expected = 0.7 * cross_entropy(output, data.y) + 0.3 * cross_entropy(output, data.y[order])
    torch.testing.assert_close(ours, expected)
    theirs = gradients(expected, model)
    for name, value in gradients(ours, work).items():
        torch.testing.assert_close(value, theirs[name])


def test_without_exchange_labels_are_not_mixed_either() -> None:
    net, data = digits_network(), digits_federation().examples(0)
    draw = {"inner": {}, "own": {"order": torch.arange(len(data)).roll(1), "on": torch.tensor(False)}}
    method = MoEx()
    ctx = first_turn(method, net, data)
    ours = training(method).loss(trainable(net.model()), ctx, batch_of(data, draw))["task"]
    torch.testing.assert_close(ours, cross_entropy(net.apply(net.model(), data.x), data.y))


def test_never_exchanging_is_what_it_wraps_bit_for_bit() -> None:
    plain, quiet = (run(job_of(method), rounds=2).server for method in ("fedavg", MoEx(q=0.0)))
    assert same({"inner": plain, "own": {}}, quiet)


def test_an_unknown_stage_is_refused() -> None:
    method = MoEx(stage="stem")
    with pytest.raises(ConfigError, match="stem"):
        method.check(job_of(method).setup)
