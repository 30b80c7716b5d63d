"""Intervals of attacks cover as often as they say, with few rows too: simulated."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fewfed.privacy.attacks import intervals, roc
from fewfed.privacy.attacks.finding import Finding, Measure, Threat

TIMES = 800


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(count: int, random: torch.Generator) -> Tensor:
    return torch.randn(count, generator=random, dtype=torch.double)


def skewed(count: int, random: torch.Generator) -> Tensor:
    """Exponential, around 0: few rows of it do not show its tail, which no interval can know."""
    return -torch.log(torch.rand(count, generator=random, dtype=torch.double)) - 1


def covering(make: Callable[[torch.Generator], tuple[float, float]], truth: float) -> float:
    random = drawn(3)
    found = [make(random) for _ in range(TIMES)]
    return sum(low <= truth <= high for low, high in found) / TIMES


@pytest.mark.parametrize("count", [2, 3, 5, 9, 10, 20, 60])
@pytest.mark.parametrize(("kind", "least"), [(normal, 0.925), (skewed, 0.855)])
def test_the_interval_of_a_mean_of_few_rows(count: int, kind: Callable[..., Tensor], least: float) -> None:
    found = covering(lambda random: intervals.of_mean(kind(count, random), times=300), 0.0)
    assert least <= found <= 0.985


@pytest.mark.parametrize("count", [2, 3, 5, 10, 30])
def test_the_interval_of_a_ratio_of_few_rows(count: int) -> None:
    def made(random: torch.Generator) -> tuple[float, float]:
        below = torch.rand(count, generator=random) + 0.5
        return intervals.of_ratio(below * 0.3 * torch.rand(count, generator=random), below, times=300)

    assert 0.895 <= covering(made, 0.15) <= 0.985


@pytest.mark.parametrize("apart", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("count", [5, 10, 30, 100])
def test_the_interval_of_an_area_near_a_half_and_near_one(apart: float, count: int) -> None:
    truth = 0.5 * (1 + math.erf(apart / 2))

    def made(random: torch.Generator) -> tuple[float, float]:
        return roc.area(normal(count, random) + apart, normal(count, random))[1:]

    assert 0.925 <= covering(made, truth) <= 0.999


@pytest.mark.parametrize("degrees", [1, 2, 5, 9, 10, 11, 15, 40, 400])
def test_students_quantiles(degrees: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert intervals.student(degrees) == pytest.approx(float(stats.t.ppf(0.975, degrees)), rel=2e-4)


def test_one_row_says_nothing_of_others() -> None:
    one = torch.tensor([0.3])
    assert intervals.of_mean(one) == (-math.inf, math.inf)
    assert intervals.of_mean(one, least=0.0, most=1.0) == (0.0, 1.0)
    assert intervals.of_ratio(one, one) == (0.0, math.inf)


def test_rows_that_are_all_alike_are_no_certainty() -> None:
    """Five sites whose labels were all read right: the next one need not be."""
    ones = torch.ones(5)
    assert intervals.of_mean(ones, least=0.0, most=1.0) == intervals.of_share(5, 5)
    assert intervals.of_mean(-ones, least=-1.0, most=1.0) == pytest.approx((-1.0, 2 * intervals.of_share(0, 5)[1] - 1))


def test_ends_stay_where_values_can_be() -> None:
    low, high = intervals.of_mean(torch.tensor([0.0, 0.9, 1.0]), least=0.0, most=1.0)
    assert (low, high) == (0.0, 1.0)


def test_what_is_not_known_is_null_in_json() -> None:
    threat = Threat("the server", "one packet", "nothing")
    measure = Measure("PSNR in dB", 20.0, *intervals.of_mean(torch.tensor([20.0])), 1)
    said = json.dumps(Finding("gradient", "", threat, 1, "train", (measure,)).as_json(), allow_nan=False)
    (found,) = json.loads(said)["measures"]
    assert (found["low"], found["value"], found["high"]) == (None, 20.0, None)
