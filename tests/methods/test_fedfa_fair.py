"""FedFa (fair): the specification's weights, and its server step in closed form."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from quadratics import parabolas, weight

from fewfed.methods.fedfa_fair import FedFaFair, fair_weights
from support import digits_federation, digits_network, job_of, run


def test_weights_from_participation() -> None:
    found = fair_weights(torch.tensor([0.3, 0.9, 0.1]), torch.tensor([1.0, 2.0, 3.0]), 1.0)
    torch.testing.assert_close(found, torch.tensor([0.14233, 0.31654, 0.54113]), rtol=0, atol=1e-5)


def test_weights_from_accuracy_favour_those_that_do_badly() -> None:
    accuracy = np.array([0.2, 0.3, 0.5])
    information = -np.log2(accuracy / accuracy.sum() + 1e-6)
    found = fair_weights(torch.tensor(accuracy), torch.tensor([1.0, 1.0, 9.0], dtype=torch.float64), 0.0)
    np.testing.assert_allclose(found.numpy(), information / information.sum(), rtol=1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 50)), min_size=1, max_size=8),
    st.floats(0, 1),
)
def test_weights_are_a_distribution(clients: list[tuple[float, int]], beta: float) -> None:
    accuracy = torch.tensor([acc for acc, _ in clients], dtype=torch.float64)
    times = torch.tensor([float(count) for _, count in clients], dtype=torch.float64)
    found = fair_weights(accuracy, times, beta)
    assert float(found.sum()) == pytest.approx(1.0)
    assert torch.isfinite(found).all()


def test_nobody_right_is_an_equal_share() -> None:
    torch.testing.assert_close(fair_weights(torch.zeros(4), torch.ones(4), 0.0), torch.full((4,), 0.25))


@pytest.mark.parametrize("gamma", [0.0, 0.6])
def test_the_server_steps_back_along_its_momentum(gamma: float) -> None:
    """Equal weights: w_new = w + 0.5·(2 − w) with one plain step of 0.5 a round; m and w follow from it."""
    pull = 0.1
    done = run(parabolas(FedFaFair(gamma=gamma, pull=pull), (1.0, 3.0), epochs=1), rounds=4, cohort=2)
    w = m = 0.0
    for _ in range(4):
        new = w + 0.5 * (2.0 - w)
        m = gamma * m + (1 - gamma) * (new - w)
        w = new - pull * m
    assert weight(done.server["model"]) == pytest.approx(w, rel=1e-12)


def test_clients_use_the_same_momentum() -> None:
    """Two steps of SGD with momentum gamma from 0 towards 1: v1 = −1, v2 = gamma·v1 + (0.5 − 1)."""
    job = parabolas(FedFaFair(gamma=0.6, pull=0.0), (1.0,), lr=0.5, epochs=2)
    assert weight(run(job, rounds=1, cohort=1).server["model"]) == pytest.approx(0.5 + 0.5 * (0.6 + 0.5))


def test_participations_are_counted_by_client() -> None:
    job = job_of("fedfa-fair")
    done = run(job, rounds=4, cohort=3)
    expected = np.bincount([client for number in range(4) for client in job.plan.cohort(number, 10, 3)], minlength=10)
    assert done.server["times"].tolist() == expected.tolist()


def test_the_accuracy_is_that_of_the_received_model_on_the_clients_own_rows() -> None:
    federation = digits_federation(3, [5, 12, 9])
    sent = run(job_of("fedfa-fair", federation), rounds=1, cohort=3).views[0].phases[0].combined.values["accuracy"]
    net = digits_network()
    for client in range(3):
        data = federation.examples(client)
        right = net.apply(net.model(), data.x, train=False).argmax(1) == data.y
        assert float(sent[str(client)]) == pytest.approx(float(right.double().mean()))
