"""FedRobust: the saddle of a quadratic in closed form, and what stays at the client."""

from __future__ import annotations

import pytest
import torch

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.methods.fedrobust import FedRobust
from fewfed.tasks.regression import Regression
from support import context, digits_federation, job_of, linear_network, run, same, states

SGD = {"optimizer": "sgd", "lr": 0.05, "lr_decay": 0.0, "epochs": 1, "batch": 4}


def test_descent_and_ascent_take_one_step_each_from_the_same_gradient() -> None:
    """loss = (w·x·(1 + s) + w·t − y)²/2 with x = 2, y = 1, w = 1: error 1, so dw = 2, ds = 2, dt = 1 at s = t = 0."""
    rows = Examples(torch.full((4, 1), 2.0, dtype=torch.float64), torch.ones(4, dtype=torch.float64))
    federation = GeneratedFederation(1, lambda client: rows, rows, classes=0)
    method = FedRobust(weight=1.0, ascent=0.03)
    job = job_of(method, federation, net=linear_network([[1.0]]), training=SGD, task=Regression())
    ran = run(job, rounds=1, cohort=1)
    state = states(ran.views[-1].executor, 1)[0]
    assert float(ran.server["model"]["params"]["head.weight"]) == pytest.approx(1 - 0.05 * 2)
    assert float(state["stretch"]) == pytest.approx(0.03 * 2)
    assert float(state["shift"]) == pytest.approx(0.03 * 1)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("ascent", [0.02, 0.2])
def test_the_step_size_of_the_distortion_acts_under_any_optimiser(optimizer: str, ascent: float) -> None:
    """Two steps against the same written out: (s, t) += ascent · gradient, and torch's own optimiser in w alone."""
    x, y, price = 2.0, 1.0, 0.5
    rows = Examples(torch.full((1, 1), x, dtype=torch.float64), torch.full((1,), y, dtype=torch.float64))
    federation = GeneratedFederation(1, lambda client: rows, rows, classes=0)
    training = {**SGD, "optimizer": optimizer, "epochs": 2, "weight_decay": 0.01, "clip": 0.0}
    method = FedRobust(weight=price, ascent=ascent)
    job = job_of(method, federation, net=linear_network([[1.0]]), training=training, task=Regression())
    ran = run(job, rounds=1, cohort=1)
    found = states(ran.views[-1].executor, 1)[0]

    w = torch.ones(1, dtype=torch.float64, requires_grad=True)
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    down = kinds[optimizer]([w], lr=0.05, weight_decay=0.01)
    stretch, shift = 0.0, 0.0
    for _ in range(2):
        seen = x * (1 + stretch) + shift
        error = w.item() * seen - y
        w.grad = torch.tensor([error * seen], dtype=torch.float64)
        up = w.item() * error
        stretch, shift = stretch + ascent * (up * x - 2 * price * stretch), shift + ascent * (up - 2 * price * shift)
        down.step()
    assert float(ran.server["model"]["params"]["head.weight"]) == pytest.approx(w.item())
    assert float(found["stretch"]) == pytest.approx(stretch)
    assert float(found["shift"]) == pytest.approx(shift)


def test_a_frozen_model_meets_the_worst_distortion_its_price_allows() -> None:
    """For w = 0.5, x = 0, y = −1 and lam = 1 the maximum of (0.5·t + 1)²/2 − t² is at t = 0.5/(2 − 0.25) = 2/7."""
    rows = Examples(torch.zeros(1, 1, dtype=torch.float64), -torch.ones(1, dtype=torch.float64))
    federation = GeneratedFederation(1, lambda client: rows, rows, classes=0)
    # The model stands still while the distortion settles.
    training = {**SGD, "lr": 1e-9, "lr_floor": 0.0, "epochs": 400}
    method = FedRobust(weight=1.0, ascent=0.1)
    ran = run(
        job_of(method, federation, net=linear_network([[0.5]]), training=training, task=Regression()),
        rounds=1,
        cohort=1,
    )
    state = states(ran.views[-1].executor, 1)[0]
    assert float(state["shift"]) == pytest.approx(2 / 7, rel=1e-3)
    assert float(state["stretch"]) == 0


def test_distortions_stay_at_the_client_and_are_taken_up_again() -> None:
    job = job_of("fedrobust", digits_federation(3))
    ran = run(job, rounds=1, cohort=3)
    assert set(ran.server) == {"model"}
    assert set(ran.server["model"]["params"]) == set(job.net.model()["params"])
    state = states(ran.views[-1].executor, 3)[1]
    assert bool(state["shift"].any())
    again = job.method.begin(context(job.net, job.federation.examples(1), state=state))
    assert all(torch.equal(again[name], value) for name, value in state.items())
    assert set(again["params"]) == set(job.net.model()["params"])


def test_no_ascent_is_fedavg_bit_for_bit_even_with_weight_decay() -> None:
    training = {"weight_decay": 0.1}
    plain, quiet = (run(job_of(m, training=training), rounds=2).server for m in ("fedavg", FedRobust(ascent=0.0)))
    assert same(plain, quiet)
