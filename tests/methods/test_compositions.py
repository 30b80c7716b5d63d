"""Methods around methods run by composition alone, and what they send is counted."""

from __future__ import annotations

import pytest

from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from support import digits_federation, job_of, run, same


@pytest.mark.parametrize(
    "spec", ["sem(flea)", "fedfa(flea)", "sem(scaffold)", "ccvr(fedntd)", "mixstyle(fedfa(fedprox))"]
)
def test_a_composition_runs_and_agrees_on_all_executors(spec: str) -> None:
    job = job_of(spec, digits_federation(8, 16))
    workers = Workers(job, options=Options(processes=2, stack=1, layout="plain"))
    try:
        runs = [run(job, rounds=3, cohort=4, executor=executor) for executor in (Sequential(job), workers)]
    finally:
        workers.close()
    assert not any(view.metrics["failed"] for view in runs[0].views)
    assert same(runs[0].server, runs[1].server)


def test_a_relayed_model_is_counted_as_if_clients_sent_it_directly() -> None:
    view = run(job_of("sem(fedavg)", digits_federation(8, 16)), rounds=1, cohort=4).views[0]
    traffic = view.metrics["bytes"]
    model = sum(leaf.numel() * 4 for part in view.server["inner"]["model"].values() for leaf in part.values())
    weight = 8  # The sample count travels with the model.
    assert traffic["up"] == 4 * (2 * model + weight)
    assert traffic["down"] == 4 * (2 * model + weight)
    assert traffic["peer_to_peer"] == {"up": 4 * model, "down": 4 * model, "between_clients": 4 * (model + weight)}


def test_nothing_is_relayed_without_a_relay() -> None:
    view = run(job_of("fedavg", digits_federation(8, 16)), rounds=1, cohort=4).views[0]
    assert set(view.metrics["bytes"]) == {"up", "down", "down_if_sent_every_time"}
