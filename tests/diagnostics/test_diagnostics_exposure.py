"""Directed exposure against its expectation and against what crossed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.diagnostics.exposure import Exposure, Pairs, expected_exposure, exposure_curve
from fewfed.engine.job import Job
from fewfed.methods.registry import choose
from support import digits_federation, job_of, run


def test_expectation_is_the_specification(flea_values: dict[str, Any]) -> None:
    case = flea_values["exposure_directed_expected"]
    for round, expected in zip(case["t"], case["eps"], strict=True):
        assert expected_exposure(case["participation"], round) == pytest.approx(expected, abs=1e-6)


def many_clients(method: str, clients: int) -> Job:
    """One row a client is enough to see where rows go."""
    train = digits_federation().union()
    federation = GeneratedFederation(
        clients, lambda k: train.rows(torch.arange(k, k + 4) % len(train)), Examples(train.x[:1], train.y[:1]), 10
    )
    return job_of(method, federation)


def test_cohorts_pass_rows_on_as_often_as_expected(flea_values: dict[str, Any]) -> None:
    curve = exposure_curve(many_clients("flea", 500), cohort=50, rounds=100)
    case = flea_values["exposure_directed_expected"]
    for round, expected in zip(case["t"], case["eps"], strict=True):
        assert curve[round - 1] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("method", ["flea", "fedmix", "feddata", "fedavg", "ccvr"])
def test_what_is_foreseen_is_what_happens(method: str) -> None:
    observer = Exposure()
    recorded = run(job_of(method, training={"epochs": 1}), rounds=4, observers=[observer])
    assert exposure_curve(job_of(method), cohort=3, rounds=4) == observer.curve
    assert [metrics["exposure"] for metrics in recorded.metrics] == observer.curve


def test_counted_by_hand() -> None:
    observer = Exposure()
    recorded = run(job_of("flea", training={"epochs": 1}), rounds=4, cohort=3, observers=[observer])
    cohorts = [set(view.cohort) for view in recorded.views]
    seen = {(i, j) for sent, received in itertools.pairwise(cohorts) for i in sent for j in received}
    assert observer.curve[-1] == len(seen) / 100
    assert observer.curve[0] == 0


@pytest.mark.parametrize("history", [1, 2, 3, 9])
def test_rows_that_stay_for_several_rounds_are_counted_with_their_owners(history: int) -> None:
    """Client k holds rows of class k alone, so that the labels that were broadcast say whose rows were received."""
    rows = digits_federation().union()
    federation = GeneratedFederation(
        10, lambda k: rows.rows(torch.nonzero(rows.y == k).flatten()[: 4 + k]), Examples(rows.x[:1], rows.y[:1]), 10
    )
    job = job_of(choose("flea", {"history": history, "share": 0.4}).method, federation, training={"epochs": 1})
    observer = Exposure()
    recorded = run(job, rounds=5, cohort=2, observers=[observer])
    seen: set[tuple[int, int]] = set()
    counted = []
    for view in recorded.views:
        for result in view.phases[:1]:
            owners = result.shared.get("labels", torch.zeros(0)).unique().tolist()
            seen |= {(int(owner), client) for owner in owners for client in result.combined.clients}
        counted.append(len(seen) / 100)
    assert observer.curve == counted
    assert exposure_curve(job, cohort=2, rounds=5) == counted


def test_who_sent_no_row_is_seen_by_nobody() -> None:
    """Three rows at client 0, four at client 1 and so on: a fifth of them, rounded down, is none at first."""
    rows = digits_federation().union()
    federation = GeneratedFederation(
        10, lambda k: rows.rows(torch.nonzero(rows.y == k).flatten()[: 3 + k]), Examples(rows.x[:1], rows.y[:1]), 10
    )
    job = job_of(choose("flea:official", {"share": 0.2}).method, federation, training={"epochs": 1})
    observer = Exposure()
    recorded = run(job, rounds=6, cohort=4, observers=[observer])
    seen, counted = set[tuple[int, int]](), []
    for view in recorded.views:
        received = view.phases[0]
        owners = received.shared.get("labels", torch.zeros(0)).unique().tolist()
        seen |= {(int(owner), client) for owner in owners for client in received.combined.clients}
        counted.append(len(seen) / 100)
    assert observer.curve == counted
    assert 0 < counted[-1] < exposure_curve(job, cohort=4, rounds=6)[-1], "foreseen is that everybody sends"


def test_a_pool_of_all_is_seen_by_whoever_trains() -> None:
    curve = exposure_curve(job_of("fedmix"), cohort=10, rounds=1)
    assert curve == [1.0]


@pytest.mark.parametrize("method", ["fedavg", "ccvr"])
def test_nothing_is_exposed_where_no_row_comes_back(method: str) -> None:
    assert exposure_curve(job_of(method), cohort=3, rounds=3) == [0.0, 0.0, 0.0]


def test_pairs_are_directed() -> None:
    pairs = Pairs(4)
    pairs.deliver([0, 1], [2])
    assert pairs.fraction == 2 / 16
    pairs.deliver([0, 1], [2])
    assert pairs.fraction == 2 / 16
    pairs.deliver([2], [0, 1])
    assert pairs.fraction == 4 / 16
