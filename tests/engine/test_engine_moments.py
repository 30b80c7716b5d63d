"""`reset = "never"`: a client's optimiser goes on where it stopped, at home, and nobody else sees its moments."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fewfed import Training, resume
from fewfed import run as run_folder
from fewfed.diagnostics.replay import refuse_unrepeatable
from fewfed.engine.events import Impossible
from fewfed.engine.executor import Executor
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options as DeviceOptions
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options as WorkersOptions
from fewfed.engine.loop import RoundView
from fewfed.engine.optimizer import LocalOptimizer
from fewfed.errors import ConfigError
from fewfed.method import Context
from fewfed.methods.fedavg import FedAvg
from fewfed.tree import Tree
from run_support import assert_same_end, small
from run_support import states as written_states
from support import digits_federation, gap, in_double, job_of, run, same, states

NEVER: dict[str, Any] = {"reset": "never", "epochs": 1, "lr_decay": 0.0}


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, 1e-2)),
        ({"optimizer": "adamw", "weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1)),
        ({"optimizer": "sgd", "momentum": 0.9}, lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9)),
    ],
)
def test_rounds_of_one_client_are_one_optimiser_over_as_many_epochs(settings: dict[str, Any], reference: Any) -> None:
    job = in_double(job_of("fedavg", digits_federation(1, 20), training={**NEVER, "lr": 1e-2, **settings}))
    ended = run(job, rounds=4, cohort=1)
    model, rows = job.net.model(), job.federation.examples(0)
    params = [leaf.requires_grad_(True) for leaf in model["params"].values()]
    optimizer = reference(params)
    for round in range(4):
        for batch in job.plan.batches(round, "train", 0, 20, 1):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(job.net.apply(model, rows.x[batch]), rows.y[batch]).backward()
            optimizer.step()
    assert gap({name: leaf.detach() for name, leaf in model["params"].items()}, ended.server["model"]["params"]) < 1e-10
    forgetting = dataclasses.replace(job, training=dataclasses.replace(job.training, reset="round"))
    other = run(forgetting, rounds=4, cohort=1)
    assert gap(other.server["model"]["params"], ended.server["model"]["params"]) > 1e-4, "it makes a difference"


@pytest.mark.parametrize("spec", [pytest.param("fedavg", marks=pytest.mark.thorough), "moon"])
def test_every_executor_keeps_the_same_moments_beside_the_methods_state(spec: str) -> None:
    job = in_double(job_of(spec, digits_federation(5, 12), training={"reset": "never"}))
    executors: dict[str, Executor] = {
        "workers": Workers(job, options=WorkersOptions(processes=2, stack=1)),
        "stacked workers": Workers(job, options=WorkersOptions(processes=2, stack=2)),
        "device": Device(job, options=DeviceOptions(device="cpu", mode="stacked", stack=2)),
    }
    usual = run(job, rounds=3, cohort=3, executor=(reference := Sequential(job)))
    remembered = states(reference, 5)
    assert remembered
    for client, tree in remembered.items():
        assert set(tree["fewfed.moments"]) == {"train"}
        assert (reference.homes.remembered(client) is None) == (spec == "fedavg"), "the method's own is apart"
    for name, executor in executors.items():
        try:
            ended = run(job, rounds=3, cohort=3, executor=executor)
            assert same(ended.server, usual.server), name
            assert same(states(executor, 5), remembered), name
            said = [event for view in ended.views for event in view.record.events if isinstance(event, Impossible)]
            assert ["stay from round to round" in str(event) for event in said] == ([] if name == "workers" else [True])
        finally:
            executor.close()


def test_neither_the_method_nor_the_server_sees_them_and_off_nothing_is_kept() -> None:
    @dataclasses.dataclass(frozen=True)
    class Looking(FedAvg):
        def begin(self, ctx: Context) -> Tree:
            assert ctx.state == {}
            assert not any(isinstance(value, dict) and "first" in value for value in vars(ctx).values())
            return super().begin(ctx)

    never = run(job_of(Looking(), training=NEVER), rounds=2)
    usual = run(
        job_of("fedavg", training={**NEVER, "reset": "round"}),
        rounds=2,
        executor=(off := Sequential(job_of("fedavg"))),
    )
    assert [view.metrics["bytes"] for view in never.views] == [view.metrics["bytes"] for view in usual.views]
    assert never.views[0].phases[0].combined.values.keys() == {"model"}
    assert states(off, 10) == {}


class Stop:
    """Ends a run in its second round."""

    def after_round(self, view: RoundView) -> None:
        if view.clock.round == 1:
            raise KeyboardInterrupt


# MOON keeps state beside the moments; `single` trains as nobody's client, on everybody's rows.
@pytest.mark.parametrize("spec", ["moon", pytest.param("single", marks=pytest.mark.thorough)])
def test_a_run_that_was_stopped_goes_on_with_the_moments_it_had(spec: str, tmp_path: Path) -> None:
    training, whole, stopped = Training(**NEVER), tmp_path / "whole", tmp_path / "stopped"
    run_folder(spec, small(rounds=4), training, out=whole)
    with pytest.raises(KeyboardInterrupt):
        run_folder(spec, small(rounds=4), training, out=stopped, observers=[Stop()])
    resume(stopped)
    assert_same_end(whole, stopped)
    assert any("fewfed.moments" in kept for kept in written_states(whole).values())


def test_a_refused_packet_leaves_them_as_they_were() -> None:
    @dataclasses.dataclass(frozen=True)
    class Breaking(FedAvg):
        def end(self, work: Tree, ctx: Context) -> Any:
            report = super().end(work, ctx)
            if ctx.clock.round == 1 and ctx.client == 0:
                return report._replace(weight=-1.0)
            return report

    job = job_of(Breaking(), digits_federation(2, 12), training=NEVER)
    executor = Sequential(job)
    found: list[dict[int, Tree]] = []

    class Note:
        def after_round(self, view: RoundView) -> None:
            found.append(states(executor, 2))

    run(job, rounds=2, cohort=2, executor=executor, observers=[Note()])
    assert same(found[0][0], found[1][0])
    assert not same(found[0][1], found[1][1])


def test_parameters_that_are_new_start_anew_and_a_turn_cannot_be_repeated() -> None:
    settings = Training(optimizer="adam")
    old = [torch.ones(3, dtype=torch.float64)]
    first = LocalOptimizer(settings, old)
    first.step([torch.full((3,), 2.0, dtype=torch.float64)], 0.1)

    def moved(moments: Tree) -> list[Tensor]:
        params = [torch.ones(3, dtype=torch.float64), torch.ones(2, dtype=torch.float64)]
        optimizer = LocalOptimizer(settings, params)
        optimizer.recall(["kept", "new"], moments)
        optimizer.step([torch.full_like(leaf, 0.5) for leaf in params], 0.1)
        return params

    known, fresh = moved(first.moments(["kept"])), moved({})
    assert torch.equal(known[1], fresh[1])
    assert not torch.equal(known[0], fresh[0])
    assert torch.equal(moved({"first": {"kept": torch.ones(5)}, "second": {}, "count": {}})[0], fresh[0])
    with pytest.raises(ConfigError, match="reset = 'never'"):
        refuse_unrepeatable(job_of("fedavg", training=NEVER))
