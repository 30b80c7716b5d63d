"""The buffer's history: which rounds' features clients train with."""

from __future__ import annotations

import torch

from support import digits_federation, job_of, run


def rows_by_round(history: int) -> tuple[list[int], list[int]]:
    """Rows uploaded in each round, and rows broadcast to the next one."""
    from fewfed.methods.registry import choose

    method = choose("flea", {"history": history, "share": 0.5}).method
    views = run(job_of(method, digits_federation(10, 12)), rounds=5, cohort=3).views
    uploaded = [len(view.phases[1].combined.values["labels"]) for view in views]
    broadcast = [len(view.phases[0].shared.get("labels", ())) for view in views]
    return uploaded, broadcast


def test_the_buffer_is_replaced_by_default() -> None:
    uploaded, broadcast = rows_by_round(1)
    assert broadcast == [0, *uploaded[:-1]]


def test_a_history_keeps_that_many_rounds() -> None:
    uploaded, broadcast = rows_by_round(3)
    assert broadcast == [sum(uploaded[max(0, t - 3) : t]) for t in range(5)]


def test_what_stays_is_what_was_sent() -> None:
    from fewfed.methods.registry import choose

    method = choose("flea", {"history": 2, "share": 0.5}).method
    views = run(job_of(method, digits_federation(10, 12)), rounds=3, cohort=3).views
    sent = [view.phases[1].combined.values["features"] for view in views]
    assert torch.equal(views[2].phases[0].shared["features"], torch.cat([sent[1], sent[0]]))
    assert set(views[2].phases[0].shared) == {"model", "features", "labels"}
