"""FedRS: the specification's value, by the client's label set and not the batch's."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.methods.fedrs import FedRS
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.tasks.classification import Classification
from support import batch_of, context, digits_network, job_of, linear_network, run


def loss(values: dict[str, Any], counts: list[int], alpha: float) -> float:
    case = values["fedrs"]
    net = linear_network(torch.eye(3).tolist())
    data = Examples(torch.tensor(case["logits"], dtype=torch.float64), torch.tensor(case["targets"]))
    ctx = dataclasses.replace(context(net, data, task=Classification(3)), counts=torch.tensor(counts))
    return float(FedRS(alpha=alpha).loss(net.model(), ctx, batch_of(data))["task"])


def test_the_loss_is_the_specifications_value(flea_values: dict[str, Any]) -> None:
    assert loss(flea_values, [5, 0, 3], 0.5) == pytest.approx(flea_values["fedrs"]["ce"], abs=1e-6)


def released_step(
    layers: nn.Sequential, x: Tensor, y: Tensor, counts: Tensor, alpha: float, lr: float
) -> tuple[float, Tensor]:
    """One SGD step of the authors' loss on a classifier without bias: its value, and the new classifier."""
    weight = layers[1].weight.detach().clone().requires_grad_()
    scale = counts / counts.sum()
    scale = scale / scale.max() * (1.0 - alpha) + alpha
    loss = nn.functional.cross_entropy(scale.reshape(1, -1) * layers[0](x).mm(weight.T), y)
    loss.backward()
    assert weight.grad is not None
    return float(loss.detach()), (weight - lr * weight.grad).detach()


def test_the_released_form_has_graded_scales_and_no_bias() -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Tanh(), nn.Linear(5, 4)).double()
    rows = Examples(torch.randn(8, 5, dtype=torch.float64), torch.tensor([0, 0, 0, 0, 1, 1, 3, 0]))
    federation = GeneratedFederation(1, lambda client: rows, rows, classes=4)
    training = {"optimizer": "sgd", "lr": 0.5, "lr_decay": 0.0, "epochs": 1, "batch": 8, "weight_decay": 0.0}
    method = choose("fedrs:released", {"alpha": 0.3}).method
    net = Network.of(layers)
    job = job_of(method, federation, net=net, training=training, task=Classification(4))
    counts = torch.tensor([5.0, 2.0, 0.0, 1.0], dtype=torch.float64)
    value, weight = released_step(layers, rows.x, rows.y, counts, 0.3, 0.5)
    ran = run(job, rounds=1, cohort=1)
    assert ran.views[0].phases[0].record.terms["task"] == pytest.approx(value, abs=1e-6)
    params = ran.server["model"]["params"]
    torch.testing.assert_close(params["layer2.weight"], weight)
    assert not params["layer2.bias"].any()


def test_the_released_forms_bias_stays_zero_under_adam_with_weight_decay() -> None:
    ran = run(job_of("fedrs:released", training={"weight_decay": 0.1}), rounds=2)
    params = ran.server["model"]["params"]
    assert not params["head.bias"].any()
    assert digits_network().model()["params"]["head.bias"].any(), "the network's own start is another"


def test_a_class_the_client_has_counts_even_if_the_batch_lacks_it(flea_values: dict[str, Any]) -> None:
    case = flea_values["fedrs"]
    plain = torch.nn.functional.cross_entropy(
        torch.tensor(case["logits"], dtype=torch.float64), torch.tensor(case["targets"])
    )
    assert loss(flea_values, [5, 1, 3], 0.5) == pytest.approx(float(plain), abs=1e-12)
    assert loss(flea_values, [5, 0, 3], 1.0) == pytest.approx(float(plain), abs=1e-12)
