from __future__ import annotations

import math

import pytest
import torch

from fewfed.data.examples import Examples
from fewfed.methods.feddata import FedData
from fewfed.phase import Clock
from fewfed.tree import Tree
from support import context, digits, digits_federation, digits_network, job_of, run, same

SIZES = [4, 10, 12, 20, 31]


def shared_by(method: FedData, data: Examples) -> Tree:
    """What a client with these rows uploads before round 1."""
    setup = method.phases(Clock(0, 3, 1))[0]
    ctx = context(digits_network(), data, {}, phase=setup)
    return setup.does.end(setup.does.begin(ctx), ctx).upload


def test_everybody_shares_a_fixed_fraction_once() -> None:
    recorder = run(job_of(FedData(share=0.25), digits_federation(5, SIZES)), rounds=3)
    pool = sum(max(1, math.floor(0.25 * size)) for size in SIZES)
    assert [[result.phase.name for result in view.phases] for view in recorder.views] == [
        ["setup", "train"],
        ["train"],
        ["train"],
    ]
    assert recorder.views[0].phases[0].combined.clients == tuple(range(5))
    assert recorder.views[0].phases[0].record.rows == {"x": pool, "y": pool}
    pools = [view.phases[-1].shared for view in recorder.views]
    assert all(len(shared["y"]) == pool and torch.equal(shared["x"], pools[0]["x"]) for shared in pools)


def test_sharing_everything_pools_exactly_the_union() -> None:
    federation = digits_federation(4, 6)
    shared = run(job_of(FedData(share=1.0), federation), rounds=1).views[0].phases[-1].shared
    union = federation.union()

    def as_rows(data: Examples) -> list[tuple[float, ...]]:
        return sorted((*x.flatten().tolist(), float(y)) for x, y in zip(data.x, data.y, strict=True))

    assert as_rows(Examples(shared["x"], shared["y"])) == as_rows(union)


def test_a_client_shares_rows_of_its_own_without_repeating_one() -> None:
    data = Examples(torch.arange(20.0).reshape(20, 1), torch.arange(20) % 10)
    sent = shared_by(FedData(share=0.5), data)
    assert len(set(sent["x"].flatten().tolist())) == 10
    assert torch.equal(sent["y"], sent["x"].flatten().long() % 10)


def test_training_runs_over_own_rows_and_the_pool() -> None:
    train, _ = digits()
    own, pool = train.rows(torch.arange(5)), train.rows(torch.arange(5, 12))
    ctx = context(digits_network(), own, {"model": {}, "x": pool.x, "y": pool.y})
    assert torch.equal(FedData().data(ctx).x, train.x[:12])
    recorder = run(job_of(FedData(share=0.5), digits_federation(4, 8)), rounds=1, cohort=4)
    assert recorder.views[0].phases[-1].record.steps == 4 * 2 * math.ceil((8 + 4 * 4) / 8)


def test_trap_42_weights_in_the_mean_remain_the_clients_own_sizes() -> None:
    recorder = run(job_of("feddata", digits_federation(5, SIZES)), rounds=2, cohort=5)
    for view in recorder.views:
        assert view.phases[-1].combined.weights == tuple(float(size) for size in SIZES)


def test_a_pool_of_ones_own_rows_changes_what_is_learnt() -> None:
    federation = digits_federation(3, 8)
    assert not same(
        run(job_of("feddata", federation)).server["model"], run(job_of("fedavg", federation)).server["model"]
    )


def test_it_says_why_its_steps_differ() -> None:
    assert "pool" in FedData.steps_differ
    assert FedData.neutral is None


@pytest.mark.parametrize("size", [1, 2, 9])
def test_the_smallest_client_shares_one_row(size: int) -> None:
    data = digits()[0].rows(torch.arange(size))
    assert len(shared_by(FedData(), data)["y"]) == 1


def test_trap_45_a_thousand_clients_of_one_to_five_rows() -> None:
    sizes = [1 + (7 * client) % 5 for client in range(1000)]
    job = job_of("feddata", digits_federation(1000, sizes), training={"epochs": 1, "batch": 256})
    recorder = run(job, rounds=2, cohort=2)
    assert [metrics["failed"] for metrics in recorder.metrics] == [[], []]
    assert len(recorder.server["y"]) == 1000
