"""FedSAM: its direction against two hand-made passes, and BatchNorm statistics of one."""

from __future__ import annotations

import pytest
import torch
from quadratics import parabolas, weight
from torch import Tensor

from fewfed import tree
from fewfed.methods.fedsam import FedSAM
from fewfed.tree import Tree
from support import batch_of, context, digits_federation, digits_network, gradients, job_of, run, trainable


def test_a_step_uses_the_gradient_at_the_ascended_point() -> None:
    """On c·(w − a)²/2 the ascent moves by rho against a, so the step is η·c·(a − w + rho)."""
    job = parabolas(FedSAM(rho=0.2), (2.0,), curvatures=(3.0,), lr=0.1, epochs=1)
    assert weight(run(job, rounds=1, cohort=1).server["model"]) == pytest.approx(0.1 * 3 * (2.0 + 0.2))


def test_the_ascent_has_length_rho_over_all_parameters_together() -> None:
    net, data = digits_network(), digits_federation().examples(0)
    ctx, batch = context(net, data), batch_of(data)
    points: list[Tree] = []
    method = FedSAM(rho=0.3)

    def differentiate(point: Tree) -> tuple[Tree, Tree]:
        points.append(tree.clone(point))
        terms = method.loss(point, ctx, batch)
        return gradients(terms["task"], point), terms

    work = trainable(net.model())
    direction, _ = method.gradient(differentiate, work, ctx, batch)
    start, ascended = points
    assert float(tree.sq_distance(start["params"], ascended["params"]).sqrt()) == pytest.approx(0.3, rel=1e-5)
    there = trainable(ascended)
    expected = gradients(ctx.task.loss(net.apply(there, data.x), data.y), there)
    for name, value in expected.items():
        torch.testing.assert_close(direction[name], value, rtol=1e-4, atol=1e-6)


def test_batch_norm_statistics_follow_the_first_pass_only() -> None:
    """After one step from the same start FedAvg and FedSAM have seen the same activations."""
    training = {"epochs": 1, "batch": 12}
    plain, sharp = (
        run(job_of(method, training=training), rounds=1, cohort=1).server["model"] for method in ("fedavg", "fedsam")
    )
    for name, value in plain["buffers"].items():
        assert torch.equal(sharp["buffers"][name], value)
    assert any(not torch.equal(sharp["params"][name], value) for name, value in plain["params"].items())


def test_no_ascent_is_fedavg_bit_for_bit() -> None:
    plain, flat = (run(job_of(method), rounds=2).server["model"] for method in ("fedavg", FedSAM(rho=0.0)))
    for (_, a), (_, b) in zip(tree.leaves(plain), tree.leaves(flat), strict=True):
        assert torch.equal(a, b)


def test_a_vanishing_gradient_is_no_trouble() -> None:
    job = parabolas(FedSAM(), (0.0,), epochs=1)
    moved: Tensor = run(job, rounds=1, cohort=1).server["model"]["params"]["head.weight"]
    assert torch.equal(moved, torch.zeros_like(moved))
