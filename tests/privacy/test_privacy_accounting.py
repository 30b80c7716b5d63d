"""Compositions: the known answer of the project, brute force on a small one, and which accountant is tighter."""

from __future__ import annotations

import math

import dp_accounting
import dp_accounting.pld
import pytest
import torch
from torch import Tensor

from fewfed.privacy.accounting import Sampled, Spent

ROUNDS = (Sampled(0.1, 1.0, 100, fixed=False),)
COHORTS = (Sampled(0.1, 1.0, 100),)
FEATURES = 10 / 4.0**2


def test_rounds_and_features_together_cost_less_than_one_by_one() -> None:
    """100 Poisson rounds at q = 0.1, sigma 1, and ten releases of features at sigma 4, delta 1e-5."""
    together = Spent(FEATURES, ROUNDS).epsilon(1e-5)
    apart = Spent(0.0, ROUNDS).epsilon(1e-5) + Spent(FEATURES).epsilon(1e-5)
    assert together == pytest.approx(8.01, abs=0.005)
    assert apart == pytest.approx(10.39, abs=0.005)


def test_of_poisson_rounds_it_is_what_the_library_says() -> None:
    made = dp_accounting.pld.PLDAccountant(dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    made.compose(dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0)), 100)
    made.compose(dp_accounting.GaussianDpEvent(4.0), 10)
    assert Spent(FEATURES, ROUNDS).epsilon(1e-5) == pytest.approx(made.get_epsilon(1e-5), abs=1e-4)


def test_renyi_divergences_are_looser() -> None:
    spent = Spent(FEATURES, ROUNDS)
    assert spent.epsilon(1e-5) < spent.epsilon(1e-5, "rdp") < 1.3 * spent.epsilon(1e-5)
    cohorts = Spent(FEATURES, COHORTS)
    assert cohorts.epsilon(1e-5) < cohorts.epsilon(1e-5, "rdp") < 2 * cohorts.epsilon(1e-5)
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
    found = Spent(shift**2, (Sampled(rate, noise, 2, fixed=False),)).epsilon(max(deltas))
    assert found == pytest.approx(epsilon, abs=2e-3)


def worst(rate: float, noise: float, rounds: int, epsilon: float) -> float:
    """The largest delta, by brute force, where in each round whoever else may be in a cohort of fixed size is like the
    client with its row, or like the client without it, whichever is worse after what was seen so far."""
    x = torch.linspace(-8 * noise, 1 + 8 * noise, 801, dtype=torch.float64)
    step = float(x[1] - x[0])
    alone, mixed = density(x, 0.0, noise), (1 - rate) * density(x, 0.0, noise) + rate * density(x, 1.0, noise)
    losses = torch.linspace(-20.0, 20.0, 16001, dtype=torch.float64)
    left = (1 - (epsilon - losses).exp()).clamp(min=0)  # After the last round, by the loss so far.
    for _ in range(rounds):
        each = []
        for one, other in ((mixed, alone), (alone, mixed)):
            # Rounded down, so that the delta is one that is really reached.
            place = ((losses[:, None] + (one / other).log() + 20.0) * 400).floor().long().clamp(0, 16000)
            each.append((left[place] * one).sum(1) * step)
        left = torch.maximum(*each)
    return float(left[8000])


@pytest.mark.parametrize(("rate", "noise", "epsilon"), [(0.3, 0.8, 1.0), (0.5, 1.0, 0.5)])
def test_cohorts_of_a_fixed_size_are_bounded_whoever_else_is_in_them(rate: float, noise: float, epsilon: float) -> None:
    rounds = 6
    delta = worst(rate, noise, rounds, epsilon)
    poisson, fixed = (Spent(0.0, (Sampled(rate, noise, rounds, fixed),)).epsilon(delta) for fixed in (False, True))
    assert poisson < epsilon, "what holds for Poisson sampling does not hold here"
    assert epsilon <= fixed < 1.6 * epsilon


def test_one_round_costs_the_same_however_it_was_drawn() -> None:
    """There is nothing yet that a later round could depend on."""
    for rate, noise, delta in ((0.1, 1.0, 1e-5), (0.5, 2.0, 1e-3), (0.9, 0.7, 1e-6)):
        poisson, fixed = (Spent(0.0, (Sampled(rate, noise, 1, fixed),)).epsilon(delta) for fixed in (False, True))
        assert fixed == pytest.approx(poisson, abs=2e-4)


def test_everybody_in_every_round_is_no_sampling() -> None:
    many = Spent(0.0, (Sampled(1 - 1e-9, 3.0, 5),)).epsilon(1e-5)
    assert many == pytest.approx(Spent(5 / 3.0**2).epsilon(1e-5), abs=1e-3)


def test_without_noise_there_is_no_bound_whatever_else_is_there() -> None:
    assert Spent(math.inf, ROUNDS).epsilon(1e-5) == math.inf
    assert Spent(0.0, (Sampled(0.1, 0.0, 1),)).epsilon(1e-5) == math.inf
    assert Spent(0.0, (Sampled(0.1, 0.0, 0),)).epsilon(1e-5) == 0.0
