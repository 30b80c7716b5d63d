"""Compositions: the known answer of the project, brute force on a small one, and which accountant is tighter."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fewfed.privacy.accounting import Sampled, Spent

ROUNDS = (Sampled(0.1, 1.0, 100),)
FEATURES = 10 / 4.0**2


def test_rounds_and_features_together_cost_less_than_one_by_one() -> None:
    """100 sampled rounds at q = 0.1, sigma 1, and ten releases of features at sigma 4, delta 1e-5."""
    together = Spent(FEATURES, ROUNDS).epsilon(1e-5)
    apart = Spent(0.0, ROUNDS).epsilon(1e-5) + Spent(FEATURES).epsilon(1e-5)
    assert together == pytest.approx(8.01, abs=0.005)
    assert apart == pytest.approx(10.39, abs=0.005)


def test_renyi_divergences_are_looser() -> None:
    spent = Spent(FEATURES, ROUNDS)
    assert spent.epsilon(1e-5) < spent.epsilon(1e-5, "rdp") < 1.3 * spent.epsilon(1e-5)
    assert Spent(1.0).epsilon(1e-5) < Spent(1.0).epsilon(1e-5, "rdp") < 1.2 * Spent(1.0).epsilon(1e-5)


def density(x: Tensor, mean: float, deviation: float) -> Tensor:
    return torch.exp(-(((x - mean) / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_a_small_composition_agrees_with_brute_force(epsilon: float) -> None:
    """Two sampled rounds and one plain release, as integrals over all three outputs, in either direction."""
    rate, noise, shift = 0.3, 1.5, 0.5
    x = torch.linspace(-9, 11, 201, dtype=torch.float64)
    step = float(x[1] - x[0])
    empty = density(x, 0.0, noise)
    with_row = (1 - rate) * empty + rate * density(x, 1.0, noise)
    gauss_empty, gauss_row = density(x, 0.0, 1.0), density(x, shift, 1.0)

    def product(a: Tensor, b: Tensor) -> Tensor:
        return (a[:, None, None] * a[None, :, None] * b[None, None, :]) * step**3

    one, other = product(with_row, gauss_row), product(empty, gauss_empty)
    deltas = [float((a - math.exp(epsilon) * b).clamp(min=0).sum()) for a, b in ((one, other), (other, one))]
    found = Spent(shift**2, (Sampled(rate, noise, 2),)).epsilon(max(deltas))
    assert found == pytest.approx(epsilon, abs=2e-3)


def test_without_noise_there_is_no_bound_whatever_else_is_there() -> None:
    assert Spent(math.inf, ROUNDS).epsilon(1e-5) == math.inf
    assert Spent(0.0, (Sampled(0.1, 0.0, 1),)).epsilon(1e-5) == math.inf
    assert Spent(0.0, (Sampled(0.1, 0.0, 0),)).epsilon(1e-5) == 0.0
