"""FedDyn: one round in closed form, the invariant of its slopes, and the optimum it promises."""

from __future__ import annotations

import pytest
import torch
from quadratics import UNEQUAL, UNEQUAL_OPTIMUM, parabolas, weight

from fewfed import tree
from fewfed.method import Method
from fewfed.methods.feddyn import FedDyn
from support import (
    batch_of,
    context,
    digits_federation,
    digits_network,
    gradients,
    job_of,
    run,
    states,
    total,
    trainable,
)


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_it_reaches_the_optimum_of_unequal_clients(alpha: float) -> None:
    done = run(parabolas(FedDyn(alpha=alpha), **UNEQUAL), rounds=300, cohort=2)
    assert weight(done.server["model"]) == pytest.approx(UNEQUAL_OPTIMUM, abs=1e-5)
    assert weight(done.server["mean"]) == pytest.approx(UNEQUAL_OPTIMUM, abs=1e-5)


def test_one_round_in_closed_form() -> None:
    """Sizes do not matter: w_k = 0.5·a_k after one step, so h = −alpha·mean(w_k) and w = 2·mean(w_k)."""
    done = run(parabolas(FedDyn(alpha=0.2), (1.0, 3.0), sizes=(1, 7), lr=0.5, epochs=1), rounds=1, cohort=2)
    assert weight(done.server["mean"]) == pytest.approx(1.0)
    assert float(done.server["slope"]["head.weight"]) == pytest.approx(-0.2)
    assert weight(done.server["model"]) == pytest.approx(2.0)
    state = states(done.views[0].executor, 2)[1]
    assert float(state["slope"]["head.weight"]) == pytest.approx(-0.2 * 1.5)


def test_the_second_local_step_feels_the_regulariser() -> None:
    """w1 = η·a, then w2 = w1 − η·((w1 − a) + alpha·w1)."""
    lr, a, alpha = 0.25, 2.0, 0.6
    first = lr * a
    second = first - lr * ((first - a) + alpha * first)
    done = run(parabolas(FedDyn(alpha=alpha), (a,), lr=lr, epochs=2), rounds=1, cohort=1)
    assert weight(done.server["mean"]) == pytest.approx(second)


def test_the_local_gradient_has_the_linear_and_the_proximal_part() -> None:
    """g − h_k + alpha·(w_k − w), wherever the client stands and in whatever order its state came from the disk."""
    net, data, method = digits_network(), digits_federation().examples(0), FedDyn(alpha=0.3)
    generator = torch.Generator().manual_seed(1)
    model = net.model()
    moved, slope = (
        tree.map(lambda leaf: torch.randn(leaf.shape, generator=generator), model["params"]) for _ in range(2)
    )
    ctx = context(net, data, state={"slope": dict(sorted(slope.items(), reverse=True))})
    found = {}
    for name, each in (("plain", Method()), ("feddyn", method)):
        work = trainable({**model, "params": tree.add(model["params"], moved)})
        found[name] = gradients(total(each, each.loss(work, ctx, batch_of(data))), work)
    for name, plain in found["plain"].items():
        expected = plain - slope[name] + 0.3 * moved[name]
        torch.testing.assert_close(found["feddyn"][name], expected, rtol=1e-4, atol=1e-5)


def test_the_servers_slope_is_the_mean_of_the_clients() -> None:
    done = run(job_of("feddyn"), rounds=4, cohort=3)
    zero = tree.zeros_like(done.server["slope"])
    kept = states(done.views[-1].executor, 10)
    held = tree.stack([kept[client]["slope"] if client in kept else zero for client in range(10)])
    for name, slopes in held.items():
        torch.testing.assert_close(done.server["slope"][name], slopes.mean(0), rtol=1e-4, atol=1e-7)


def test_the_mean_of_the_clients_predicts() -> None:
    done = run(parabolas("feddyn", (1.0, 3.0)), rounds=1, cohort=2)
    method = done.views[0].job.method
    assert weight(method.predictor(done.server, {})) == weight(done.server["mean"])
    assert weight(done.server["mean"]) != weight(done.server["model"])
