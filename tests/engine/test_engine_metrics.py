"""Numbers a method reports beside its upload: from a client to the round's record, the same on every executor."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fewfed.engine.executor import Executor
from fewfed.engine.executors.cuda import options as cuda
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers import options as workers
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.job import Job
from fewfed.method import Context, Report
from fewfed.methods.fedavg import FedAvg
from fewfed.tree import Tree
from support import EXACT, Recorder, digits_federation, in_double, job_of, run

SIZES = (5, 12, 8, 16, 12, 9)
SAME_BITS = ("sequential", "workers 1", "workers 2")
TO_ROUNDING = ("workers stacked", "device graphs", "device stacked", "device eager")

Measured = Callable[[Tree, Context], Mapping[str, Any]]


@dataclass(frozen=True)
class Reporting(FedAvg):
    """FedAvg whose clients report some numbers."""

    measured: Measured = lambda work, ctx: {}

    def end(self, work: Tree, ctx: Context) -> Report:
        return super().end(work, ctx)._replace(metrics=self.measured(work, ctx))


def everything(work: Tree, ctx: Context) -> dict[str, float]:
    """Of the client, of its rows, of what it trained, of the round; not all clients report all."""
    length = sum(float(leaf.double().square().sum()) for leaf in work["params"].values())
    found = {"rows": ctx.size, "length": math.sqrt(length), "brightness": float(ctx.data.x.double().mean())}
    found["round twice"] = 2 * ctx.clock.round
    return {**found, "odd": float(ctx.client)} if ctx.client % 2 else found


def job(measured: Measured, sizes: tuple[int, ...] = SIZES) -> Job:
    training = {"optimizer": "sgd", "lr": 0.02, "epochs": 1, "batch": 4}
    return in_double(job_of(Reporting(measured=measured), digits_federation(len(sizes), sizes), training=training))


@contextmanager
def executor(kind: str, made: Job) -> Iterator[Executor]:
    name, _, way = kind.partition(" ")
    found: Executor
    if name == "sequential":
        found = Sequential(made)
    elif name == "workers":
        exact = workers.Options(1 if way == "stacked" else int(way), stack=1, layout="plain")
        found = Workers(made, options=dataclasses.replace(exact, stack=4 if way == "stacked" else 1))
    else:
        found = Device(made, options=cuda.Options(device="cpu", mode=way, stack=4))  # type: ignore[arg-type]
    try:
        yield found
    finally:
        found.close()


def ran(kind: str, made: Job, rounds: int = 2) -> Recorder:
    with executor(kind, made) as found:
        return run(made, rounds=rounds, cohort=len(made.federation), executor=found)


def reported(recorder: Recorder) -> list[dict[str, float]]:
    """As they are written down."""
    return [json.loads(json.dumps(metrics))["phases"]["train"].get("metrics", {}) for metrics in recorder.metrics]


@pytest.mark.parametrize("kind", SAME_BITS)
def test_the_record_has_the_mean_over_the_clients_that_report_a_number(kind: str) -> None:
    made = job(everything)
    found = reported(ran(kind, made))
    bright = [float(made.federation.examples(client).x.double().mean()) for client in range(len(SIZES))]
    for number, metrics in enumerate(found):
        assert metrics.keys() == {"rows", "length", "brightness", "round twice", "odd"}
        assert metrics["rows"] == sum(SIZES) / len(SIZES)
        assert metrics["round twice"] == 2 * number
        assert metrics["odd"] == (1 + 3 + 5) / 3
        assert metrics["brightness"] == pytest.approx(sum(bright) / len(bright), rel=1e-14)
    assert found[0]["length"] != found[1]["length"]
    assert found == reported(ran("sequential", made)), "bit for bit"


@pytest.mark.parametrize("kind", TO_ROUNDING)
def test_executors_that_round_otherwise_report_the_same_but_for_that(kind: str) -> None:
    made = job(everything)
    found, expected = reported(ran(kind, made)), reported(ran("sequential", made))
    assert [metrics.keys() for metrics in found] == [metrics.keys() for metrics in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=EXACT, rel=0)
        assert {name: ours[name] for name in ("rows", "odd")} == {name: theirs[name] for name in ("rows", "odd")}


@pytest.mark.parametrize("kind", TO_ROUNDING)
def test_clients_of_one_size_in_a_stack_report_their_own_numbers(kind: str) -> None:
    """A stack asks its clients together where they are alike: their numbers must not become the first one's."""
    made = job(lambda work, ctx: {"own": float(ctx.counts[0]), "constant": 0.5}, sizes=(8,) * 8)
    zeros = [int(made.federation.counts(client)[0]) for client in range(8)]
    assert len(set(zeros)) > 1
    for metrics in reported(ran(kind, made)):
        assert metrics == {"own": sum(zeros) / 8, "constant": 0.5}


@pytest.mark.parametrize("kind", [*SAME_BITS, *TO_ROUNDING])
def test_without_any_the_record_has_none(kind: str) -> None:
    for metrics in ran(kind, job(lambda work, ctx: {}), rounds=1).metrics:
        assert "metrics" not in metrics["phases"]["train"]
        assert metrics["phases"]["train"]["terms"].keys() == {"task"}


@pytest.mark.parametrize("kind", [*SAME_BITS, *TO_ROUNDING])
@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"spent": float("nan")}, "metric 'spent' is nan: expected a finite number"),
        ({"spent": float("inf")}, "metric 'spent' is inf: expected a finite number"),
        ({"spent": "much"}, "metric 'spent' is a str: expected a number"),
        ({"spent": torch.ones(())}, "metric 'spent' is a Tensor: expected a number"),
        ({"spent": True}, "metric 'spent' is a bool: expected a number"),
        ({"steps": 3.0}, "metric 'steps': expected a name that is not 'steps'"),
        ({"loss.task": 3.0}, "metric 'loss.task': expected a name that is not 'steps' and does not begin with 'loss.'"),
        ([("spent", 1.0)], "its metrics are a list: expected named numbers"),
    ],
    ids=["nan", "infinite", "text", "tensor", "truth", "steps", "loss", "list"],
)
def test_a_client_that_reports_something_else_is_left_out_alone(kind: str, odd: Any, said: str) -> None:
    def measured(work: Tree, ctx: Context) -> Any:
        return odd if ctx.client == 2 else {"spent": float(ctx.client)}

    (metrics,) = ran(kind, job(measured, sizes=(4,) * 5), rounds=1).metrics
    (failure,) = metrics["failed"]
    assert (failure["client"], failure["phase"], failure["cause"]) == (2, "train", "packet")
    assert said in failure["reason"]
    assert metrics["phases"]["train"]["metrics"] == {"spent": (0 + 1 + 3 + 4) / 4}
    assert metrics["phases"]["train"]["clients"] == 4


@pytest.mark.parametrize("kind", [*SAME_BITS, *TO_ROUNDING])
def test_numbers_change_nothing_in_what_is_trained(kind: str) -> None:
    quiet, loud = ran(kind, job(lambda work, ctx: {})), ran(kind, job(everything))
    ours, theirs = loud.server["model"]["params"], quiet.server["model"]["params"]
    assert all(float((ours[name] - theirs[name]).abs().max()) < EXACT for name in theirs)
    assert [view.record.phases["train"].traffic for view in loud.views] == [
        view.record.phases["train"].traffic for view in quiet.views
    ]
