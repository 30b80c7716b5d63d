"""Server-side and drift-correcting methods, alone and under SEM: they learn digits, and processes agree to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fewfed import arrays, tree
from fewfed.engine.client import evaluate
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.loop import run_rounds
from fewfed.engine.sequential import Sequential
from fewfed.engine.store import ClientStore
from fewfed.engine.workers import Workers
from support import digits_federation, digits_network, job_of, run

PLAIN = ("scaffold", "feddyn", "fedavgm", "fedadam", "fedyogi", "fedsam", "fedbn", "elastic", "fedfv", "fedfa-fair")
AROUND = ("fedavg", "fedprox", "scaffold", "feddyn", "fedfv:sem", "fedfa-fair", "elastic", "fedsam", "flea")
METHODS = (*PLAIN, *(f"sem({inner})" for inner in AROUND))


@pytest.mark.parametrize("method", METHODS)
def test_it_improves_on_the_initial_model(method: str) -> None:
    training = {"optimizer": "sgd", "lr": 0.03, "lr_decay": 0.0, "epochs": 2, "batch": 10}
    job = job_of(method, digits_federation(6, 30), training=training, net=digits_network())
    before = evaluate(job, job.net.model())
    after = run(job, rounds=6, cohort=6, observers=[Evaluate(every=6)]).metrics[-1]
    assert after["loss"] < before.mean_loss
    assert after["accuracy"] > before.accuracy + 0.1
    assert after["failed"] == []


@pytest.mark.parametrize("method", METHODS)
def test_worker_processes_compute_the_same_bits(method: str) -> None:
    job = job_of(method, digits_federation(5, 9))
    alone = run(job, rounds=2, cohort=3)
    workers = Workers(job, 2)
    try:
        together = run(job, rounds=2, cohort=3, executor=workers)
    finally:
        workers.close()
    pairs = zip(tree.leaves(alone.server), tree.leaves(together.server), strict=True)
    assert all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize("method", ["scaffold", "fedbn", "fedfv", "fedfa-fair", "sem(scaffold)", "sem(fedfv)"])
def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(method: str, tmp_path: Path) -> None:
    job = job_of(method, digits_federation(5, 9))
    whole = run(job, rounds=3, cohort=3)

    store = ClientStore(tmp_path)
    before = run_rounds(job, Sequential(job), [], rounds=2, cohort=3, store=store)
    arrays.save(tmp_path.with_suffix(".server"), before)
    restored = ClientStore(tmp_path)
    restored.restore(store.commit())
    server, _ = arrays.load(tmp_path.with_suffix(".server"))
    after = run_rounds(job, Sequential(job), [], rounds=3, cohort=3, store=restored, server=server, start=2)

    ours, theirs = (dict(tree.leaves(kept)) for kept in (after, whole.server))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[path], leaf) for path, leaf in theirs.items())
