"""Short runs on digits that several test files ask the same of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fewfed import tree
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.sequential import Sequential
from fewfed.engine.workers import Workers
from fewfed.tree import Tree
from support import digits_federation, job_of, run


def same_bits(a: Tree, b: Tree) -> bool:
    """Whether two trees have the same names and values."""
    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return all(name == other and torch.equal(x, y) for (name, x), (other, y) in pairs)


def processes_agree(method: str) -> bool:
    """Whether two worker processes leave the server and every client's memory as one process does."""
    job = job_of(method, digits_federation(5, 9))
    alone = run(job, rounds=2, cohort=3)
    workers = Workers(job, 2)
    try:
        together = run(job, rounds=2, cohort=3, executor=workers)
    finally:
        workers.close()
    ours, theirs = (
        {str(k): view.store.get(k) or {} for k in range(5)} for view in (alone.views[-1], together.views[-1])
    )
    return same_bits(alone.server, together.server) and same_bits(ours, theirs)


def accuracies(method: str, *, rounds: int = 8, training: Mapping[str, Any] | None = None) -> tuple[float, float]:
    """Accuracy before and after; of personal models on the classes their clients have."""
    job = job_of(method, digits_federation(6, 40), training={"lr": 0.003, **(training or {})})
    measure = "accuracy_matched" if job.method.personal_model else "accuracy"
    start = Sequential(job).evaluate(
        [job.method.predictor(job.method.server_init(job.setup), job.method.client_init(job.setup))]
    )[0]
    counts = [job.federation.counts(client) for client in range(6)]
    before = sum(start.matched(count) for count in counts) / 6 if job.method.personal_model else start.accuracy
    after = run(job, rounds=rounds, cohort=6, observers=[Evaluate(every=rounds)]).metrics[-1]
    assert after["failed"] == []
    return before, float(after[measure])
