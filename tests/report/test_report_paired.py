"""Differences between methods, seed by seed: against SciPy, against a bootstrap, and in words."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fewfed.metric import METRICS
from fewfed.report.paired import Paired, half_width, paired, sentence

ACCURACY, LOSS, CALIBRATION, F1 = (METRICS[name] for name in ("accuracy", "loss", "calibration_error", "macro_f1"))
SHARES = st.floats(0, 1, allow_nan=False)


def by_seed(values: list[float]) -> dict[int, float]:
    return dict(enumerate(values))


@settings(deadline=None)
@given(st.lists(st.tuples(SHARES, SHARES), min_size=2, max_size=12))
def test_the_interval_is_that_of_scipys_paired_test(pairs: list[tuple[float, float]]) -> None:
    first, second = (list(values) for values in zip(*pairs, strict=True))
    found = paired(by_seed(first), by_seed(second), ACCURACY)
    assert found.interval is not None
    if np.ptp(np.subtract(first, second)) < 1e-9:  # SciPy divides by the deviation.
        assert found.half == pytest.approx(0, abs=1e-8)
        return
    wanted = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert found.interval == pytest.approx((wanted.low, wanted.high), rel=1e-9, abs=1e-12)
    assert found.mean == pytest.approx(np.mean(np.subtract(first, second)), abs=1e-12)


def test_a_brute_force_bootstrap_of_many_seeds_finds_the_same_interval() -> None:
    random = np.random.default_rng(0)
    seeds = random.normal(0, 0.1, 400)  # What all methods share cancels.
    first, second = 0.8 + seeds + random.normal(0, 0.02, 400), 0.75 + seeds + random.normal(0, 0.02, 400)
    found = paired(by_seed(first.tolist()), by_seed(second.tolist()), ACCURACY)
    differences = first - second
    drawn = random.choice(differences, (20_000, 400)).mean(1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    assert found.interval == pytest.approx((low, high), abs=2e-4)
    unpaired = stats.ttest_ind(first, second).confidence_interval(0.95)
    assert unpaired.high - unpaired.low > 3 * (high - low)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    draws = random.normal(0.05, 0.03, (4000, 5))
    held = [abs(np.mean(row) - 0.05) <= (half_width(tuple(row)) or 0) for row in draws.tolist()]
    assert np.mean(held) == pytest.approx(0.95, abs=0.012)


def test_a_sentence_says_who_beats_whom_by_how_much_on_how_many_seeds() -> None:
    flea, fedavg = [0.80, 0.82, 0.81, 0.83, 0.82], [0.73, 0.75, 0.75, 0.74, 0.76]
    found = paired(by_seed(flea), by_seed(fedavg), ACCURACY)
    low, high = stats.ttest_rel(flea, fedavg).confidence_interval(0.95)
    half = 100 * (high - low) / 2
    assert sentence("FLea", "FedAvg", found, ACCURACY) == f"FLea beats FedAvg by 7.0 ± {half:.1f} points, 5 of 5 seeds."
    other = paired(by_seed(fedavg), by_seed(flea), ACCURACY)
    assert sentence("FedAvg", "FLea", other, ACCURACY).startswith("FedAvg is behind FLea by 7.0 ± ")
    assert sentence("FedAvg", "FLea", other, ACCURACY).endswith("5 of 5 seeds.")


def test_an_interval_with_zero_in_it_tells_nobody_apart() -> None:
    found = paired(by_seed([0.7, 0.6, 0.8]), by_seed([0.6, 0.7, 0.7]), ACCURACY)
    told = sentence("a", "b", found, ACCURACY)
    assert found.verdict == "alike"
    assert told.startswith("a and b cannot be told apart: a difference of +3.3 ± ")
    assert told.endswith("a better on 2 of 3 seeds.")


@pytest.mark.parametrize(("metric", "told"), [(LOSS, "0.300 ± 0.000 in loss"), (CALIBRATION, "30.0 ± 0.0 points of")])
def test_where_smaller_is_better_less_beats_more(metric: object, told: str) -> None:
    less, more = by_seed([0.2, 0.3]), by_seed([0.5, 0.6])
    assert f"a beats b by {told}" in sentence("a", "b", paired(less, more, metric), metric)  # type: ignore[arg-type]
    assert "a is behind b by" in sentence("a", "b", paired(more, less, metric), metric)  # type: ignore[arg-type]
    assert paired(less, more, metric).won == 2  # type: ignore[arg-type]


def test_differences_to_a_run_that_diverged_are_no_rows_of_digits() -> None:
    found = paired({0: 5e98}, {0: 1.0}, LOSS)
    assert sentence("a", "b", found, LOSS) == "a is behind b by 5e+98 in loss; one seed, no interval."
    assert sentence("a", "b", paired({0: 99_999.5}, {0: 0.25}, LOSS), LOSS).startswith("a is behind b by 99999.250 in")


def test_one_seed_has_no_interval_and_says_so() -> None:
    found = paired({0: 0.8}, {0: 0.7}, ACCURACY)
    assert found.interval is None
    assert sentence("a", "b", found, ACCURACY) == "a is ahead of b by 10.0 points; one seed, no interval."
    assert "came to the same; one seed" in sentence("a", "b", paired({0: 0.5}, {0: 0.5}, ACCURACY), ACCURACY)
    assert "is behind" in sentence("a", "b", paired({0: 0.1}, {0: 0.5}, F1), F1)


def test_seeds_that_only_one_has_are_left_out_and_named() -> None:
    found = paired({0: 0.8, 1: 0.9, 5: 0.1}, {0: 0.7, 1: 0.8, 2: 0.99}, ACCURACY)
    assert (found.seeds, found.unpaired) == (2, (2, 5))
    assert sentence("a", "b", found, ACCURACY).endswith("; only one of the two has seeds 2, 5, left out.")
    nothing = paired({0: 0.8}, {1: 0.7}, ACCURACY)
    assert math.isnan(nothing.mean)
    assert "have no seed in common" in sentence("a", "b", nothing, ACCURACY)


def test_differences_that_are_all_the_same_leave_no_doubt() -> None:
    assert Paired((0.0, 0.0), 0.0).verdict == "alike"
    assert paired(by_seed([0.5, 0.75]), by_seed([0.25, 0.5]), ACCURACY).verdict == "better"


def test_runs_that_are_equal_to_the_last_digit_are_called_the_same() -> None:
    """A method that changed nothing, as one that had too few rows to share: not a difference of 0.0 ± 0.0."""
    same = by_seed([0.5, 0.75, 0.6])
    assert sentence("a", "b", paired(same, same, ACCURACY), ACCURACY) == "a and b came to the same on each of 3 seeds."
    nearly = paired(same, by_seed([0.5, 0.75, 0.6 + 1e-9]), ACCURACY)
    assert "cannot be told apart" in sentence("a", "b", nearly, ACCURACY)


def test_what_rounding_leaves_of_nothing_makes_nobody_better() -> None:
    """Two methods that are the same on paper add up in another order: not 'behind by 0.000 ± 0.000', on every seed."""
    almost, same = by_seed([0.5 + 1e-9, 0.7 + 1e-9, 0.6 + 1e-9]), by_seed([0.5, 0.7, 0.6])
    found = paired(almost, same, LOSS)
    assert found.verdict == "alike"
    assert sentence("a", "b", found, LOSS).startswith("a and b cannot be told apart")
    assert "came to the same; one seed" in sentence("a", "b", paired({0: 0.5 + 1e-9}, {0: 0.5}, LOSS), LOSS)
    assert paired(by_seed([0.50002, 0.70002]), by_seed([0.5, 0.7]), LOSS).verdict == "worse"


def test_a_small_difference_is_not_called_nothing() -> None:
    found = paired(by_seed([0.70013, 0.60015]), by_seed([0.7, 0.6]), ACCURACY)
    assert sentence("a", "b", found, ACCURACY) == "a beats b by 0.014 ± 0.013 points, 2 of 2 seeds."
    found = paired({0: 0.50001}, {0: 0.5}, LOSS)
    assert sentence("a", "b", found, LOSS) == "a is behind b by 1e-05 in loss; one seed, no interval."
    rounded = paired(by_seed([0.7, 0.8, 0.3]), by_seed([0.6, 0.7, 0.2]), ACCURACY)
    assert rounded.half is not None
    assert 0 < rounded.half < 1e-12  # What is left of nothing is not told.
    assert sentence("a", "b", rounded, ACCURACY) == "a beats b by 10.0 ± 0.0 points, 3 of 3 seeds."
