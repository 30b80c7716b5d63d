"""FedAdam against its formulas in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from quadratics import parabolas, weight

from fewfed.methods.fedadam import FedAdam
from support import job_of, run


def reference(method: FedAdam, rounds: int, yogi: bool) -> float:
    """Clients at 1 and 3 with one step of 0.5 from a common w: D = 0.5·(2 − w)."""
    w, m, v = 0.0, 0.0, method.tau**2
    for _ in range(rounds):
        d = 0.5 * (2.0 - w)
        m = method.beta1 * m + (1 - method.beta1) * d
        if yogi:
            v = v - (1 - method.beta2) * d**2 * np.sign(v - d**2)
        else:
            v = method.beta2 * v + (1 - method.beta2) * d**2
        w = w + method.server_lr * m / (np.sqrt(v) + method.tau)
    return float(w)


@pytest.mark.parametrize("method", [FedAdam(), FedAdam(server_lr=0.1, beta1=0.5, beta2=0.9, tau=0.2)])
def test_it_follows_the_formulas(method: FedAdam) -> None:
    done = run(parabolas(method, (1.0, 3.0), lr=0.5, epochs=1), rounds=6, cohort=2)
    assert weight(done.server["model"]) == pytest.approx(reference(method, 6, yogi=False), rel=1e-12)


def test_the_mean_is_weighted_by_samples() -> None:
    done = run(parabolas(FedAdam(beta1=0.0, beta2=0.0), (1.0, 3.0), sizes=(3, 1), epochs=1), rounds=1, cohort=2)
    moved = 0.5 * 1.5
    assert weight(done.server["model"]) == pytest.approx(0.01 * moved / (moved + 1e-3))


def test_batch_norm_statistics_are_the_plain_average() -> None:
    plain, adaptive = (run(job_of(method), rounds=1).server["model"] for method in ("fedavg", "fedadam"))
    for name, value in plain["buffers"].items():
        assert torch.equal(adaptive["buffers"][name], value)
