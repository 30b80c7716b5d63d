"""The Gaussian mechanism's closed form, against the definition by numbers and against dp-accounting."""

from __future__ import annotations

import math

import pytest
import torch

from fewfed.privacy.gaussian import delta_of, epsilon_of, precision_of

MULTIPLIERS = (0.05, 0.3, 1.0, 4.0, 60.0)


def hockey_stick(precision: float, epsilon: float) -> float:
    """delta by its definition: the integral of what exceeds e^epsilon times the other density."""
    mu = math.sqrt(precision)
    x = torch.linspace(-12 - mu, 12 + 2 * mu, 400_001, dtype=torch.float64)
    one, other = (torch.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi) for mean in (mu, 0.0))
    return float(torch.trapezoid((one - math.exp(epsilon) * other).clamp(min=0), x))


@pytest.mark.parametrize("precision", [0.01, 0.5, 1.0, 9.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0, 4.0])
def test_delta_is_that_of_the_definition(precision: float, epsilon: float) -> None:
    assert delta_of(precision, epsilon) == pytest.approx(hockey_stick(precision, epsilon), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("noise", MULTIPLIERS)
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 1e-2])
def test_epsilon_is_the_librarys(noise: float, delta: float) -> None:
    from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    assert epsilon_of(1 / noise**2, delta) == pytest.approx(get_epsilon_gaussian(noise, delta), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0, 300.0, 1e4, 1e9])
def test_the_largest_precision_within_a_budget_is_the_largest(epsilon: float) -> None:
    most = precision_of(epsilon, 1e-5)
    assert delta_of(most, epsilon) <= 1e-5 < delta_of(most * (1 + 1e-9), epsilon)
    assert epsilon_of(most, 1e-5) == pytest.approx(epsilon)


def test_nothing_released_is_nothing_told_and_without_noise_there_is_no_bound() -> None:
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(math.inf, 1e-5) == math.inf
    assert delta_of(math.inf, 10.0) == 1.0
    assert delta_of(0.0, 1e9) == 0.0
