"""Information: closed forms for normal numbers, nothing where there is nothing, and the ceiling of InfoNCE."""

from __future__ import annotations

import math

import pytest
import torch
from recorded_run import recorded, silent

from fewfed.data.federation import GeneratedFederation
from fewfed.methods.registry import choose
from fewfed.privacy.attacks import intervals
from fewfed.privacy.attacks.estimates import gaussian_information, info_nce, principal
from fewfed.privacy.attacks.information import LEAST_CLIENTS, Information, first_of
from support import digits, digits_federation, job_of


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


@pytest.mark.parametrize("noise", [0.3, 1.0, 3.0])
def test_of_normal_numbers_it_is_the_closed_form(noise: float) -> None:
    """x of three correlated numbers, sent with noise: half the log of the ratio of two determinants."""
    mix = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 2.0]], dtype=torch.double)
    x = normal(6000, 3) @ mix
    sent = x + noise * normal(6000, 3, seed=1)
    found = gaussian_information(x[:3000], sent[:3000], x[3000:], sent[3000:])
    covariance = mix.T @ mix
    eye = torch.eye(3, dtype=torch.double)
    truth = 0.5 * float(torch.logdet(eye + covariance / noise**2))
    low, high = intervals.of_mean(found)
    assert low - 0.02 <= truth <= high + 0.02
    assert float(found.mean()) == pytest.approx(truth, rel=0.05)


def test_noise_says_nothing() -> None:
    x, sent = normal(800, 5), normal(800, 12, seed=1)
    found = gaussian_information(x[:400], sent[:400], x[400:], sent[400:])
    low, high = intervals.of_mean(found)
    assert high > -0.2
    assert low <= 0.0
    assert float(found.mean()) < 0.05, "an estimate on rows it was not fitted to does not see what is not there"


def test_info_nce_stays_below_the_truth_and_the_log_of_the_clients() -> None:
    secrets = normal(400, 2)
    for noise in (0.05, 1.0):
        messages = secrets @ normal(2, 6, seed=2) + noise * normal(400, 6, seed=3)
        terms = info_nce(messages[:200], secrets[:200], messages[200:], secrets[200:])
        assert 0.3 < float(terms.mean()) <= math.log(200)
    gram = normal(2, 6, seed=2) @ normal(2, 6, seed=2).T
    truth = 0.5 * float(torch.logdet(torch.eye(2, dtype=torch.double) + gram))
    assert float(terms.mean()) <= truth + 0.1


def test_info_nce_of_unrelated_messages_is_nothing() -> None:
    secrets, messages = normal(200, 3), normal(200, 30, seed=1)
    terms = info_nce(messages[:100], secrets[:100], messages[100:], secrets[100:])
    assert float(terms.mean()) < 0.1


def test_principal_directions_keep_what_rows_differ_in() -> None:
    rows = normal(50, 3) @ normal(3, 20, seed=1)
    kept = principal(rows, 10)
    assert kept.shape == (20, 3)
    back = (rows - rows.mean(0)) @ kept @ kept.T + rows.mean(0)
    assert torch.allclose(back, rows, atol=1e-9)


def test_shared_features_and_messages_say_much_about_rows_and_labels() -> None:
    method = choose("flea", {"share": 0.5}).method
    case = recorded(job_of(method, digits_federation(LEAST_CLIENTS + 6, 12)), rounds=1, cohort=30)
    assert not Information().why_not(case)
    rows, messages = Information().findings(case, silent)
    assert (rows.variant, messages.variant) == ("shared rows", "messages")
    assert rows.measures[0].low > 10.0
    assert rows.measures[0].rows == 30 * 6
    bound = messages.measures[0]
    assert 0.0 < bound.low <= bound.high <= math.log(15) + 1e-9
    assert bound.rows == 15
    assert "log 15" in messages.note


def test_few_clients_that_share_no_rows_give_no_bound() -> None:
    case = recorded(job_of("fedavg", digits_federation(4, 8)), rounds=1)
    assert str(LEAST_CLIENTS) in Information().why_not(case)


def test_no_source_is_behind_two_rows_that_are_used() -> None:
    origins = torch.tensor([[0, 1], [1, 2], [2, -1], [3, 0], [4, 5]])
    assert first_of(origins).tolist() == [0, 2, 4]


def test_an_attacker_with_few_rows_estimates_nothing() -> None:
    train, test = digits()
    few = GeneratedFederation(
        4, lambda client: train.rows(torch.arange(8) + 8 * client), test.rows(torch.arange(5)), 10
    )
    case = recorded(job_of("flea", few), rounds=1)
    (found,) = Information().findings(case, silent)
    assert found.measures == ()
    assert "expected 40" in found.note
