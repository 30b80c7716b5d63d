from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.loop import run_rounds
from fewfed.errors import ConfigError
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.settings import check, make
from fewfed.tasks.regression import Regression
from fewfed.training import Training
from support import digits_federation, job_of, run, same


def official() -> Training:
    return Training(**choose("flea:official").training)


def test_trap_18_the_first_round_has_the_full_rate_in_both_schedules(flea_values: dict[str, Any]) -> None:
    assert Training().lr_at(0) == official().lr_at(0) == 1e-3
    for round, rate in flea_values["official_lr"].items():
        assert official().lr_at(int(round)) == pytest.approx(rate, rel=1e-9)
    for round, rate in flea_values["paper_lr_0.98^t"].items():
        assert Training().lr_at(int(round)) == pytest.approx(rate, rel=1e-9)


def test_trap_18_the_rate_is_one_number_a_round_not_an_epoch() -> None:
    """One client, plain descent on a fixed quadratic: every step of a round must shrink by that round's rate."""
    layer = nn.Linear(1, 1, bias=False)
    layer.weight.data.fill_(1.0)
    rows = Examples(torch.ones(4, 1), torch.zeros(4, dtype=torch.long))
    job = job_of(
        "fedavg",
        GeneratedFederation(1, lambda client: rows, rows, 0),
        net=Network("slope", {"head": layer}),
        task=Regression(),
        training={"optimizer": "sgd", "lr": 0.1, "lr_decay": 0.5, "epochs": 3, "batch": 4},
    )
    recorder = run(job, rounds=3, cohort=1)
    weight = 1.0
    for view, rate in zip(recorder.views, (0.1, 0.05, 0.025), strict=True):
        assert view.metrics["lr"] == pytest.approx(rate)
        weight *= (1 - rate) ** 3
        assert float(view.server["model"]["params"]["head.weight"]) == pytest.approx(weight, rel=1e-6)


def test_the_rate_never_falls_below_its_floor_nor_starts_below_it() -> None:
    rates = [Training(lr_decay=0.2).lr_at(round) for round in range(200)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 1e-5
    assert Training(lr=1e-6).lr_at(0) == 1e-6
    assert Training(lr=1e-6).lr_at(50) == 1e-6
    assert Training(lr_rule="linear", lr_decay=0.3).lr_at(90) == 1e-5
    assert Training(lr_decay=0).lr_at(90) == 1e-3


def test_defaults_are_the_papers() -> None:
    training = Training()
    assert (training.epochs, training.batch, training.lr, training.lr_decay) == (5, 32, 1e-3, 0.02)
    assert (training.optimizer, training.reset, training.batch_rule) == ("adam", "round", "fill")
    check(training)
    check(official())


@pytest.mark.parametrize(("name", "value"), [("epochs", 0), ("batch", 0), ("lr", 0.0), ("lr_decay", 1.0), ("clip", -1)])
def test_impossible_values_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} = "):
        make(Training, {name: value}, "training")


def test_trap_17_moments_do_not_outlive_a_round() -> None:
    """The second round of one run equals the first round of a run that starts from where the first ended."""
    federation = digits_federation(1, 16)
    training = {"lr_decay": 0.0}
    whole = run(job_of("fedavg", federation, training=training), rounds=2, cohort=1)
    first = run(job_of("fedavg", federation, training=training), rounds=1, cohort=1)
    job = job_of("fedavg", federation, training=training)
    server = run_rounds(job, Sequential(job), [], rounds=2, cohort=1, server=first.server, start=1)
    assert same(server, whole.server)
