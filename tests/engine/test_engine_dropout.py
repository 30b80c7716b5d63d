"""Networks that draw for themselves: what dropout drops is part of the run, like everything else that is drawn."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from fewfed import tree
from fewfed.engine.executor import Executor
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.workers import options as workers
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.job import Job
from fewfed.network import Network
from fewfed.tree import Tree
from support import digits_federation, job_of, run, same


def dropping(rate: float = 0.5) -> Job:
    torch.manual_seed(0)
    net = Network.of(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(rate), nn.Linear(32, 10)))
    job = job_of("fedavg", digits_federation(8, (12,) * 8), training={"epochs": 2, "batch": 8, "optimizer": "sgd"})
    return dataclasses.replace(job, net=net)


def ended(job: Job, executor: Executor | None = None) -> Tree:
    try:
        return run(job, rounds=2, cohort=6, executor=executor).server
    finally:
        if executor is not None:
            executor.close()


def test_a_network_says_whether_it_draws() -> None:
    assert dropping().net.is_random
    assert not job_of("fedavg", digits_federation(2, (4, 4))).net.is_random


def test_a_run_drops_the_same_each_time_and_leaves_torchs_generator_alone() -> None:
    first = ended(dropping())
    job = dropping()
    torch.manual_seed(17)
    before = torch.get_rng_state()
    assert same(ended(job), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not same(ended(dropping(rate=0.0)), first)


def test_workers_drop_what_the_reference_drops() -> None:
    job = dropping()
    assert same(ended(job, Workers(job, options=workers.Options(processes=2, stack=0, layout="plain"))), ended(job))


@pytest.mark.parametrize("plan", ["graphs", "stacked"])
def test_a_device_drops_the_same_each_time(plan: str) -> None:
    job = dropping()
    first, second = (
        ended(job, Device(job, options=Options(device="cpu", mode=plan, stack=4)))  # type: ignore[arg-type]
        for _ in range(2)
    )
    assert same(first, second)


def test_stacked_clients_drop_different_features() -> None:
    job = dropping()
    stacked = dict(tree.leaves(ended(job, Device(job, options=Options(device="cpu", mode="stacked", stack=4)))))
    alone = dict(tree.leaves(ended(job)))
    assert any(not torch.equal(stacked[path], alone[path]) for path in alone)
    assert all(bool(torch.isfinite(leaf).all()) for leaf in stacked.values())


@pytest.mark.parametrize("mode", ["graphs", "stacked", "eager"])
def test_a_device_puts_torchs_generator_back(mode: str) -> None:
    job = dropping()
    before = torch.get_rng_state()
    ended(job, Device(job, options=Options(device="cpu", mode=mode, stack=4)))  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), before)
