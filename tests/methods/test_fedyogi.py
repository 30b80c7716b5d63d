"""FedYogi against its formulas in NumPy, and against FedAdam."""

from __future__ import annotations

import pytest
import torch
from quadratics import parabolas, weight
from test_fedadam import reference

from fewfed.methods.fedadam import FedAdam
from fewfed.methods.fedyogi import FedYogi
from support import run


@pytest.mark.parametrize("method", [FedYogi(), FedYogi(server_lr=0.1, beta1=0.5, beta2=0.9, tau=0.7)])
def test_it_follows_the_formulas(method: FedYogi) -> None:
    done = run(parabolas(method, (1.0, 3.0), lr=0.5, epochs=1), rounds=6, cohort=2)
    assert weight(done.server["model"]) == pytest.approx(reference(method, 6, yogi=True), rel=1e-12)


def test_it_forgets_a_large_step_more_slowly_than_adam() -> None:
    large, small = torch.tensor([4.0]), torch.tensor([1e-4])
    yogi, adam = FedYogi().second_moment(large, small), FedAdam().second_moment(large, small)
    assert yogi > adam
    assert float(large - yogi) == pytest.approx(0.01 * 1e-4, rel=1e-2, abs=5e-7)
