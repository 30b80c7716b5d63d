"""SEM around methods with state on either side: processes agree to the bit, and a stopped run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fewfed import tree
from fewfed.engine import storage
from fewfed.engine.client_store import ClientStore
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.loop import run_rounds
from support import digits_federation, job_of, run

METHODS = tuple(
    f"sem({inner})" for inner in ("scaffold", "feddyn", "fedfv:sem", "fedfa-fair", "elastic", "fedsam", "flea")
)


@pytest.mark.parametrize("method", METHODS)
def test_worker_processes_compute_the_same_bits(method: str) -> None:
    job = job_of(method, digits_federation(5, 9))
    alone = run(job, rounds=2, cohort=3)
    workers = Workers(job, options=Options(processes=2, stack=1, layout="plain"))
    try:
        together = run(job, rounds=2, cohort=3, executor=workers)
    finally:
        workers.close()
    pairs = zip(tree.leaves(alone.server), tree.leaves(together.server), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize("method", ["sem(scaffold)", "sem(fedfv)"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(method: str, tmp_path: Path) -> None:
    job = job_of(method, digits_federation(5, 9))
    whole = run(job, rounds=3, cohort=3)

    homes = SimulatedHomes(job, ClientStore(tmp_path))
    before = run_rounds(job, Sequential(job, homes), [], rounds=2, cohort=3)
    storage.save(tmp_path.with_suffix(".server"), before)
    restored = SimulatedHomes(job, ClientStore(tmp_path))
    restored.restore(homes.commit())
    server, _ = storage.load(tmp_path.with_suffix(".server"))
    after = run_rounds(job, Sequential(job, restored), [], rounds=3, cohort=3, server=server, start=2)

    ours, theirs = (dict(tree.leaves(kept)) for kept in (after, whole.server))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[path], leaf) for path, leaf in theirs.items())
