"""FedAvgM against torch's own momentum."""

from __future__ import annotations

import pytest
import torch
from quadratics import parabolas, weight

from fewfed import tree
from fewfed.method import Combined, Setup
from fewfed.methods.fedavgm import FedAvgM
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from support import job_of, run


@pytest.mark.parametrize(("beta", "rate"), [(0.9, 1.0), (0.5, 0.3), (0.0, 1.0)])
def test_it_is_sgd_with_momentum_on_the_distance_to_the_mean(beta: float, rate: float) -> None:
    """Clients at a, one step of 0.5: the mean is w + 0.5·(a − w), so the server's gradient is 0.5·(w − a)."""
    done = run(parabolas(FedAvgM(beta, rate), (1.0, 3.0), lr=0.5, epochs=1), rounds=5, cohort=2)
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=rate, momentum=beta)
    for _ in range(5):
        w.grad = 0.5 * (w.detach() - 2.0)
        optimizer.step()
    assert weight(done.server["model"]) == pytest.approx(float(w.detach()), rel=1e-12)


def test_batch_norm_statistics_are_the_plain_average() -> None:
    """Clients all report a running mean of 1: it is 1 after the first and after the second round."""
    net = Network("norm", {"norm": torch.nn.BatchNorm1d(2)})
    method = FedAvgM()
    server = method.server_init(Setup(net, Classification(2), Plan(0, 8), 2, (2,)))
    for _ in range(2):
        mean = tree.map(torch.ones_like, server["model"])
        server = method.absorb(server, Combined({"model": mean}, (0, 1), (1.0, 1.0)))
        assert torch.equal(server["model"]["buffers"]["norm.running_mean"], torch.ones(2))
    # Momentum would have carried parameters past 1: weight starts at 1 and stays, bias starts at 0 and overshoots.
    assert torch.equal(server["model"]["params"]["norm.bias"], torch.full((2,), 1.9))


def test_without_momentum_it_is_fedavg_bit_for_bit() -> None:
    plain, without = (run(job_of(method), rounds=3).server["model"] for method in ("fedavg", FedAvgM(beta=0.0)))
    for (_, a), (_, b) in zip(tree.leaves(plain), tree.leaves(without), strict=True):
        assert torch.equal(a, b)


def test_the_released_preset_has_the_released_value() -> None:
    assert choose("fedavgm:released").method == FedAvgM(beta=0.01)
