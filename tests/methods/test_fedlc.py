"""FedLC: the specification's values and classes the client lacks."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from fewfed.data.examples import Examples
from fewfed.errors import ConfigError
from fewfed.method import Context, Setup
from fewfed.methods.fedlc import FedLC
from fewfed.network import Network
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from fewfed.tasks.regression import Regression
from support import batch_of, context, gradients, linear_network, trainable


def case_of(values: dict[str, Any]) -> tuple[Network, Context, Examples]:
    case = values["fedlc"]
    net = linear_network(torch.eye(3).tolist())
    data = Examples(torch.tensor(case["logits"], dtype=torch.float64), torch.tensor(case["targets"]))
    ctx = dataclasses.replace(context(net, data, task=Classification(3)), counts=torch.tensor(case["counts"]))
    return net, ctx, data


@pytest.mark.parametrize(("tau", "key"), [(1.0, "ce_tau1"), (0.1, "ce_tau0.1")])
def test_the_loss_is_the_specifications_value(flea_values: dict[str, Any], tau: float, key: str) -> None:
    net, ctx, data = case_of(flea_values)
    terms = FedLC(tau=tau).loss(net.model(), ctx, batch_of(data))
    assert terms["task"].item() == pytest.approx(flea_values["fedlc"][key], abs=1e-6)


def test_as_printed_the_sum_goes_over_the_other_classes() -> None:
    """−log( e^{f_y − tau·n_y^(−1/4)} / Σ_{c≠y} e^{f_c − tau·n_c^(−1/4)} ), row by row."""
    draw = np.random.default_rng(5)
    logits, y, counts, tau = draw.normal(size=(7, 4)), draw.integers(0, 4, 7), np.array([3, 50, 1, 20]), 0.7
    margin = tau * counts**-0.25
    expected = [
        -np.log(np.exp(row[c] - margin[c]) / sum(np.exp(row[i] - margin[i]) for i in range(4) if i != c))
        for row, c in zip(logits, y, strict=True)
    ]
    net, data = linear_network(np.eye(4).tolist()), Examples(torch.tensor(logits), torch.tensor(y))
    ctx = dataclasses.replace(context(net, data, task=Classification(4)), counts=torch.tensor(counts))
    method, work = FedLC(tau=tau, denominator="others", floor=1e-12), trainable(net.model())
    found = method.loss(work, ctx, batch_of(data))["task"]
    assert float(found.detach()) == pytest.approx(np.mean(expected), abs=1e-9)
    assert torch.isfinite(gradients(found, work)["head.weight"]).all()


def test_as_printed_a_client_of_one_class_stays_finite() -> None:
    net = linear_network(torch.eye(3).tolist())
    data = Examples(torch.randn(5, 3, dtype=torch.float64), torch.ones(5, dtype=torch.long))
    work = trainable(net.model())
    loss = FedLC(denominator="others").loss(work, context(net, data, task=Classification(3)), batch_of(data))["task"]
    assert torch.isfinite(loss)
    assert torch.isfinite(gradients(loss, work)["head.weight"]).all()


def test_a_class_without_rows_is_removed_but_finite(flea_values: dict[str, Any]) -> None:
    net, ctx, data = case_of(flea_values)
    work = trainable(net.model())
    gradient = gradients(FedLC().loss(work, ctx, batch_of(data))["task"], work)["head.weight"]
    assert torch.isfinite(gradient).all()
    assert gradient[1].abs().max() < 1e-10 < gradient[0].abs().max()


def test_equal_counts_change_nothing(flea_values: dict[str, Any]) -> None:
    net, ctx, data = case_of(flea_values)
    equal = dataclasses.replace(ctx, counts=torch.tensor([7, 7, 7]))
    expected = torch.nn.functional.cross_entropy(data.x, data.y)
    assert float(FedLC().loss(net.model(), equal, batch_of(data))["task"]) == pytest.approx(float(expected), abs=1e-12)


def test_a_task_without_classes_is_refused() -> None:
    net = linear_network([[1.0]])
    with pytest.raises(ConfigError, match="classification"):
        FedLC().check(Setup(net, Regression(), Plan(0, 8), 2, (1,)))
