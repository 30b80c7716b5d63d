"""Elastic aggregation: sensitivities of a linear map in closed form, and the factors they give."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quadratics import parabolas, weight

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.method import Combined
from fewfed.methods.elastic import Elastic
from fewfed.plan import Plan
from fewfed.tasks.regression import Regression
from support import context, digits_federation, digits_network, job_of, linear_network, run


def test_sensitivity_of_a_linear_map() -> None:
    """f = Wx: d mean‖Wx‖²/dW = 2·W·mean(xxᵀ), whose squared norm is Omega when all rows are one batch."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    matrix = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    data = Examples(x, torch.full((6,), torch.nan))
    ctx = context(linear_network(matrix.tolist()), data, task=Regression(), plan=Plan(0, 8))
    omega = Elastic().sensitivity(ctx)["head.weight"]
    torch.testing.assert_close(omega, (2 * matrix @ (x.T @ x / 6)).square().sum())


def test_the_number_of_batches_does_not_matter_where_all_are_alike() -> None:
    values = []
    for rows in (2, 4, 40):
        data = Examples(torch.ones(rows, 3, dtype=torch.float64), torch.zeros(rows))
        ctx = context(linear_network([[1.0, 2.0, 3.0]]), data, task=Regression(), plan=Plan(0, 2))
        values.append(Elastic().sensitivity(ctx)["head.weight"])
    torch.testing.assert_close(values[1], values[0])
    torch.testing.assert_close(values[2], values[0])


def test_measuring_leaves_the_broadcast_model_alone() -> None:
    net, data = digits_network(), digits_federation().examples(0)
    ctx = context(net, data)
    before = tree.clone(ctx.shared)
    measured = Elastic(share=0.5).sensitivity(ctx)
    assert set(measured) == set(net.model()["params"])
    for (_, a), (_, b) in zip(tree.leaves(before), tree.leaves(ctx.shared), strict=True):
        assert torch.equal(a, b)


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0.5, 100)), min_size=1, max_size=8),
    st.floats(0, 2),
)
def test_factors_lie_between_tau_and_one_more(clients: list[tuple[float, float]], tau: float) -> None:
    omega = torch.tensor([value for value, _ in clients], dtype=torch.float64)
    zeta = float(Elastic(tau=tau).elasticity(omega, tuple(n for _, n in clients)))
    assert tau - 1e-9 <= zeta < 1 + tau


def test_factors_in_closed_form() -> None:
    """Omega = (1, 4), p = (1/4, 3/4): 1 + tau − (1/16 + 3/4)."""
    assert float(Elastic().elasticity(torch.tensor([1.0, 4.0]), (1.0, 3.0))) == pytest.approx(1.5 - 0.8125)


def test_each_tensor_moves_by_its_own_factor() -> None:
    server = {"model": {"params": {"a": torch.zeros(2), "b": torch.zeros(1)}, "buffers": {"m": torch.zeros(1)}}}
    mean = tree.map(torch.ones_like, server["model"])
    measured = {
        "0": {"a": torch.tensor(1.0), "b": torch.tensor(2.0)},
        "5": {"a": torch.tensor(1.0), "b": torch.tensor(0.0)},
    }
    combined = Combined({"model": mean, "sensitivity": measured}, (0, 5), (1.0, 1.0))
    after = Elastic().absorb(server, combined)["model"]
    assert torch.equal(after["params"]["a"], torch.full((2,), 0.5))
    assert torch.equal(after["params"]["b"], torch.ones(1))
    assert torch.equal(after["buffers"]["m"], torch.ones(1))


def test_equally_sensitive_clients_take_tau_of_the_step() -> None:
    done = run(parabolas("elastic", (2.0, 4.0), lr=0.5, epochs=1), rounds=1, cohort=2)
    assert weight(done.server["model"]) == pytest.approx(0.5 * 0.5 * 3.0)


def test_one_number_a_tensor_is_uploaded_beside_the_model() -> None:
    plain, elastic = (run(job_of(method), rounds=1).metrics[0]["bytes"] for method in ("fedavg", "elastic"))
    tensors = len(digits_network().model()["params"])
    assert elastic["up"] - plain["up"] == 3 * tensors * 4
    assert elastic["down"] == plain["down"]
