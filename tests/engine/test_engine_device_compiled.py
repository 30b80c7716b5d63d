"""Compiled steps, with a back end that runs what was recorded as it is: it needs no compiler on the machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.device import executor as module
from fewfed.engine.device.compiled import Compiler
from fewfed.engine.device.executor import Device, DeviceOptions
from fewfed.method import Batch, Context
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.registry import choose
from fewfed.tree import Tree
from support import digits_federation, job_of, run


@pytest.fixture(autouse=True)
def _recorded_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Compiler", partial(Compiler, backend="aot_eager"))


@dataclass(frozen=True)
class Warming(FedAvg):
    """Reads the round."""

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        terms = super().loss(work, ctx, batch)
        return {name: value * (1 + ctx.clock.round) for name, value in terms.items()}


def gap(method: object, plan: str, rounds: int = 2) -> float:
    training = {"optimizer": "sgd", "lr": 0.02, "epochs": 1, "batch": 8}
    job = job_of(method, digits_federation(8, (12, 20, 12, 9, 12, 12, 12, 12)), training=training)  # type: ignore[arg-type]
    expected = run(job, rounds=rounds, cohort=6).server
    executor = Device(job, DeviceOptions(device="cpu", plan=plan, width=4, compiled=True))  # type: ignore[arg-type]
    found = run(job, rounds=rounds, cohort=6, executor=executor).server
    ours, theirs = dict(tree.leaves(found)), dict(tree.leaves(expected))
    return max(float((ours[path].double() - theirs[path].double()).abs().max()) for path in theirs)


@pytest.mark.parametrize("plan", ["graphs", "stacked"])
@pytest.mark.parametrize("name", ["fedavg", "flea", "fedfa", "scaffold", "fedsam"])
def test_a_compiled_step_agrees_with_the_reference(name: str, plan: str) -> None:
    assert gap(choose(name).method, plan) < 2e-5


@pytest.mark.parametrize("plan", ["graphs", "stacked"])
def test_a_step_that_reads_the_clock_is_not_run_with_an_old_rounds_numbers(plan: str) -> None:
    assert gap(Warming(), plan, rounds=3) < 2e-5


def test_a_function_is_compiled_once_and_changes_its_argument() -> None:
    calls = []

    def function(inputs: Tree) -> Tree:
        calls.append(1)
        inputs["count"].add_(1)
        return {"double": inputs["x"] * 2}

    compiler = Compiler(backend="aot_eager")
    inputs = {"count": torch.zeros(()), "x": torch.ones(3)}
    for _ in range(3):
        compiled = compiler.of("key", function, inputs)
        assert torch.equal(compiled(inputs)["double"], torch.full((3,), 2.0))
    assert len(calls) == 1
    assert float(inputs["count"]) >= 3
