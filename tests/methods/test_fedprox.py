from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fewfed.data.examples import Examples
from fewfed.method import Context
from fewfed.methods.fedprox import FedProx
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.tasks.regression import Regression
from fewfed.tree import Tree
from support import batch_of, context, gradients, job_of, run, same, trainable


def two_tensors(values: dict[str, Any]) -> tuple[Context, Tree]:
    """A network with the fixture's two tensors as weight and bias, its global model and the local one."""
    layer = nn.Linear(3, 1)
    layer.weight.data = torch.tensor([values["w_global"][0]])
    layer.bias.data = torch.tensor(values["w_global"][1])
    net = Network("pair", {"head": layer})
    work = trainable(net.model())
    with torch.no_grad():
        work["params"]["head.weight"].copy_(torch.tensor([values["w"][0]]))
        work["params"]["head.bias"].copy_(torch.tensor(values["w"][1]))
    return context(net, Examples(torch.zeros(2, 3), torch.zeros(2)), task=Regression()), work


def test_trap_33_squared_distance_and_sum_of_norms_have_their_own_values(flea_values: dict[str, Any]) -> None:
    values = flea_values["fedprox"]
    ctx, work = two_tensors(values)
    batch = batch_of(ctx.data)
    squared = FedProx(mu=values["mu"]).loss(work, ctx, batch)["proximal"]
    summed = FedProx(mu=values["mu"], form="norm-sum").loss(work, ctx, batch)["proximal"]
    assert float(squared.detach()) == pytest.approx(values["original mu/2*||.||^2"], abs=1e-6)
    assert float(summed.detach()) == pytest.approx(values["FLea code mu/2*sum_of_tensor_norms"], abs=1e-6)


def test_the_pull_is_mu_times_the_way_back(flea_values: dict[str, Any]) -> None:
    ctx, work = two_tensors(flea_values["fedprox"])
    term = FedProx(mu=0.3).loss(work, ctx, batch_of(ctx.data))["proximal"]
    pull = gradients(term, work)
    for name, value in work["params"].items():
        assert torch.allclose(pull[name], 0.3 * (value.detach() - ctx.shared["model"]["params"][name]))


@pytest.mark.parametrize("form", ["squared", "norm-sum"])
def test_the_first_step_starts_at_the_global_model_with_a_finite_pull(form: Any, flea_values: dict[str, Any]) -> None:
    ctx, _ = two_tensors(flea_values["fedprox"])
    method = FedProx(mu=1.0, form=form)
    work = trainable(method.begin(ctx))
    term = method.loss(work, ctx, batch_of(ctx.data))["proximal"]
    assert float(term.detach()) == 0.0
    assert all(not bool(pull.any()) for pull in gradients(term, work).values())


def test_no_weight_is_fedavg_bit_for_bit() -> None:
    assert same(run(job_of(FedProx(mu=0.0))).server, run(job_of("fedavg")).server)


def test_a_large_weight_keeps_clients_near_the_global_model() -> None:
    def moved(mu: float) -> float:
        job = job_of(FedProx(mu=mu), training={"optimizer": "sgd", "lr": 0.05})
        start, end = job.net.model()["params"], run(job, rounds=1).server["model"]["params"]
        return sum(float((start[name] - end[name]).square().sum()) for name in start)

    distances = [moved(mu) for mu in (0.0, 1.0, 10.0)]
    assert distances[0] > distances[1] > distances[2] > 0


def test_the_released_preset_is_the_sum_of_norms() -> None:
    method = choose("fedprox:released").method
    assert method == FedProx(mu=0.001, form="norm-sum")
