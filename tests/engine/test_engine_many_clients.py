"""A federation's size costs nothing: only the clients that take part are looked at."""

from __future__ import annotations

import time

import torch

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.evaluation import Evaluate
from support import job_of, run

CLIENTS = 100_000


def make(client: int) -> Examples:
    generator = torch.Generator().manual_seed(client)
    return Examples(torch.rand(12, 1, 8, 8, generator=generator), torch.randint(0, 10, (12,), generator=generator))


def test_a_round_of_a_hundred_thousand_clients_is_as_quick_as_its_cohort() -> None:
    touched: set[int] = set()

    def noted(client: int) -> Examples:
        touched.add(client)
        return make(client)

    job = job_of("fedavg", GeneratedFederation(CLIENTS, noted, make(0), classes=10))
    began = time.perf_counter()
    recorder = run(job, rounds=2, cohort=10, observers=[Evaluate()])
    assert time.perf_counter() - began < 10
    drawn = {client for view in recorder.views for client in view.cohort}
    assert touched == drawn
    assert [metrics["phases"]["train"]["clients"] for metrics in recorder.metrics] == [10, 10]


def test_scoring_personal_models_of_a_hundred_thousand_clients_looks_at_a_sample() -> None:
    touched: set[int] = set()

    def noted(client: int) -> Examples:
        touched.add(client)
        return make(client)

    job = job_of("local", GeneratedFederation(CLIENTS, noted, make(0), classes=10))
    metrics = run(job, rounds=1, cohort=10, observers=[Evaluate(clients=20)]).metrics[0]
    assert metrics["evaluated_clients"] == 20
    assert len(touched) <= 30
