"""MOON: the specification's value, what is remembered, and the optional projection."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.engine.evaluation import Evaluate
from fewfed.methods.moon import STAGE, Moon
from fewfed.network import Network
from fewfed.tasks.classification import Classification
from fewfed.tree import Tree
from support import (
    batch_of,
    context,
    digits,
    digits_federation,
    digits_network,
    gradients,
    job_of,
    run,
    states,
    trainable,
)


def model_with_feature(net: Network, feature: list[float]) -> Tree:
    model = net.model()
    model["params"]["body.weight"] = torch.tensor(feature, dtype=torch.float64).unsqueeze(1)
    return model


@pytest.mark.parametrize("mu", [1.0, 5.0])
def test_the_contrast_is_the_specifications_value(flea_values: dict[str, Any], mu: float) -> None:
    case = flea_values["moon"]
    body = nn.Linear(1, 3, bias=False, dtype=torch.float64)
    net = Network("two", {"body": body, "head": nn.Linear(3, 2, dtype=torch.float64)})
    local, received, previous = (model_with_feature(net, case[name]) for name in ("z", "z_global", "z_prev"))
    data = Examples(torch.ones(2, 1, dtype=torch.float64), torch.tensor([0, 1]))
    ctx = context(net, data, {"model": received}, state={"model": previous}, task=Classification(2))
    terms = Moon(mu=mu, tau=case["tau"]).loss(local, ctx, batch_of(data))
    assert terms["contrast"].item() == pytest.approx(mu * case["loss"], abs=1e-6)


def test_equal_models_contrast_nothing() -> None:
    net, (train, _) = digits_network(), digits()
    data = train.rows(torch.arange(8))
    work = trainable(net.model())
    model = digits_network(seed=7).model()
    ctx = context(net, data, {"model": model}, state={"model": model})
    term = Moon(mu=1.0).loss(work, ctx, batch_of(data))["contrast"]
    assert float(term.detach()) == pytest.approx(torch.log(torch.tensor(2.0)).item(), abs=1e-6)
    assert max(float(g.abs().max()) for g in gradients(term, work).values()) < 1e-6


def weights(model: Tree) -> dict[str, Tensor]:
    return dict(tree.leaves(model["params"]))


def test_a_client_remembers_its_own_last_model() -> None:
    method = Moon()
    job = job_of(method, digits_federation(2, 12))
    ended = run(job, rounds=1, cohort=2)
    kept = states(ended.views[0].executor, 2)
    first, second = (weights(kept[client]["model"]) for client in range(2))
    mean = {name: (first[name] + second[name]) / 2 for name in first}
    assert all(torch.allclose(mean[name], value, atol=1e-6) for name, value in weights(ended.server["model"]).items())
    assert not torch.equal(first["head.weight"], second["head.weight"])


def test_a_projection_is_learnt_and_averaged_but_is_no_part_of_the_model_that_predicts() -> None:
    method = Moon(head="projection")
    job = job_of(method, digits_federation(4, 12))
    first = method.server_init(job.setup)["model"]["params"]
    ended = run(job, rounds=2, cohort=3, observers=[Evaluate()])
    last = ended.server["model"]["params"]
    own = [name for name in last if name.startswith(STAGE)]
    assert {tuple(last[name].shape) for name in own} == {(64, 64), (64,), (256, 64), (256,)}
    assert all(not torch.equal(first[name], last[name]) for name in own)
    assert set(method.predictor(ended.server, {})["params"]) == set(job.net.model()["params"])
