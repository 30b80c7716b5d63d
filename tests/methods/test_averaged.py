"""Averaged: moving averages by hand, and a method that goes on as if nobody averaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from quadratics import parabolas, weight

from fewfed import tree
from fewfed.method import Combined
from fewfed.methods.averaged import Averaged
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.fedavgm import FedAvgM
from fewfed.methods.flea import FLea
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from fewfed.tree import Tree
from support import digits_federation, job_of, run, same

ROUNDS = 6


def by_hand(rate: float) -> np.ndarray:
    """Weights after each round: clients at 1 and 3, one step of `rate`, so that w moves by rate · (2 − w)."""
    return 2 * (1 - (1 - rate) ** np.arange(1, ROUNDS + 1))


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.8, 0.99])
def test_weights_fall_by_the_decay_and_add_up_to_one(decay: float) -> None:
    done = run(parabolas(Averaged(decay=decay), (1.0, 3.0), lr=0.3, epochs=1), rounds=ROUNDS, cohort=2)
    w = by_hand(0.3)
    for round, view in enumerate(done.views):
        share = decay ** np.arange(round, -1, -1)
        expected = (share * w[: round + 1]).sum() / share.sum()
        assert weight(view.job.method.predictor(view.server, {})) == pytest.approx(expected, rel=1e-12)
        assert weight(view.server["inner"]["model"]) == pytest.approx(w[round], rel=1e-12), "training goes on without"


@pytest.mark.parametrize("last", [1, 2, 3, 10])
def test_the_last_models_count_alike(last: int) -> None:
    done = run(parabolas(Averaged(last=last), (1.0, 3.0), lr=0.3, epochs=1), rounds=ROUNDS, cohort=2)
    w = by_hand(0.3)
    for round, view in enumerate(done.views):
        expected = w[max(0, round + 1 - last) : round + 1].mean()
        assert weight(view.job.method.predictor(view.server, {})) == pytest.approx(expected, rel=1e-12)
        assert len(view.server["own"]["models"]) == min(round, last - 1)


def test_running_statistics_are_averaged_and_counters_are_not() -> None:
    done = run(job_of(Averaged(decay=0.5)), rounds=3)
    models = [view.server["inner"]["model"]["buffers"] for view in done.views]
    average = done.views[-1].job.method.predictor(done.server, {})["buffers"]
    shares = np.array([0.25, 0.5, 1.0]) / 1.75
    names = [name for name, leaf in models[0].items() if leaf.is_floating_point()]
    assert names
    for name in names:
        expected = sum(share * model[name].double() for share, model in zip(shares, models, strict=True))
        torch.testing.assert_close(average[name].double(), expected, rtol=1e-6, atol=1e-7)
    for name in models[0].keys() - names:
        assert torch.equal(average[name], models[-1][name])


@pytest.mark.parametrize("spec", ["fedavg", "flea", "scaffold", "sem(flea)", "feddata", "ccvr(fedavg)"])
def test_what_is_inside_trains_and_sends_as_if_it_were_alone(spec: str) -> None:
    alone, inside = (run(job_of(each, digits_federation(6, 12)), rounds=3) for each in (spec, f"averaged({spec})"))
    assert same(alone.server, inside.server["inner"])
    assert [metrics["bytes"] for metrics in alone.metrics] == [metrics["bytes"] for metrics in inside.metrics]


@pytest.mark.parametrize("values", [{"decay": 0.0}, {"last": 1}])
@pytest.mark.parametrize("spec", ["fedavg", "flea", "fedavgm"])
def test_one_model_is_what_is_inside_bit_for_bit(spec: str, values: dict[str, Any]) -> None:
    job, plain = job_of(choose(f"averaged({spec})", values).method), job_of(spec)
    ours, theirs = run(job, rounds=3).server, run(plain, rounds=3).server
    assert same(job.method.predictor(ours, {}), plain.method.predictor(theirs, {}))


def test_around_two_methods_it_is_inside_both_legs_and_outside_them_the_same() -> None:
    """Halves of training that clients hand on are one round, wherever the average is taken."""
    inside, outside = (job_of(spec, digits_federation(6, 12)) for spec in ("sem(averaged(fedavg))", "averaged(sem)"))
    a, b = run(inside, rounds=3), run(outside, rounds=3)
    assert same(inside.method.predictor(a.server, {}), outside.method.predictor(b.server, {}))


def test_a_calibration_outside_calibrates_the_average() -> None:
    job = job_of(choose("ccvr(averaged(fedavg))", {"epochs": 1}).method)
    server = run(job, rounds=3).server
    average, calibrated = job.method.inner.predictor(server["inner"], {}), server["own"]["calibrated"]  # type: ignore[attr-defined]
    changed = {name.split(".")[0] for name, leaf in average["params"].items()
               if not torch.equal(leaf, calibrated["params"][name])}  # fmt: skip
    assert changed == {job.net.stages[-1]}


def test_a_round_whose_later_phases_bring_nothing_still_counts() -> None:
    """Where a policy lets nobody share rows, training goes on, and so must the average."""
    method = Averaged(FLea(), decay=0.5)
    job = job_of(method)
    server: Tree = method.server_init(job.setup)
    models = []
    for round in range(3):
        phase = method.phases(Clock(round, 3, 2))[0]
        mean = run(job_of(FedAvg(), seed=round), rounds=1).server["model"]
        server = phase.does.absorb(server, Combined({"model": mean}, (0,), (1.0,)))
        models.append(mean["params"])
    name = next(iter(models[0]))
    expected = (0.25 * models[0][name].double() + 0.5 * models[1][name].double() + models[2][name].double()) / 1.75
    torch.testing.assert_close(method.predictor(server, {})["params"][name].double(), expected, rtol=1e-5, atol=1e-7)


def test_nothing_but_the_predictor_is_new_to_a_client() -> None:
    plain, ours = FedAvgM().phases(Clock(3, 9, 2)), Averaged(FedAvgM()).phases(Clock(3, 9, 2))
    assert [(p.name, dict(p.uploads), p.weight, p.keeps_state) for p in plain] == [
        (p.name, dict(p.uploads), p.weight, p.keeps_state) for p in ours
    ]
    dp = choose("averaged(dp(fedavg))").method
    assert dp.mechanisms(Clock(0, 1, 1)) == choose("dp(fedavg)").method.mechanisms(Clock(0, 1, 1))


def test_the_server_keeps_one_model_more_however_long_it_runs() -> None:
    done = run(job_of("averaged(fedavg)"), rounds=4)
    sizes = {tree.nbytes(view.server["own"]) for view in done.views[1:]}
    assert len(sizes) == 1
