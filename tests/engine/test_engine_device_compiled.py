"""Compiled steps, with a back end that runs what was recorded as it is: it needs no compiler on the machine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fewfed.engine.executors.cuda import executor, lanes
from fewfed.engine.executors.cuda.compiled import Compiler
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.fusion import Fusion, fusable
from fewfed.method import Batch, Context
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.fedfa import FedFA
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.tree import Tree
from support import EXACT, digits_federation, digits_network, gap, in_double, job_of, run


@pytest.fixture(autouse=True)
def _recorded_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "Compiler", partial(Compiler, backend="aot_eager"))
    monkeypatch.setattr(lanes, "Fusion", partial(Fusion, backend="aot_eager"))


@dataclass(frozen=True)
class Warming(FedAvg):
    """Reads the round."""

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        terms = super().loss(work, ctx, batch)
        return {name: value * (1 + ctx.clock.round) for name, value in terms.items()}


@dataclass(frozen=True)
class Smooth(FedAvg):
    """Punishes the slope of its loss along the input."""

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        x = batch.x.clone().requires_grad_()
        task = ctx.task.loss(ctx.net.apply(work, x), batch.y)
        (slope,) = torch.autograd.grad(task, x, create_graph=True)
        return {"task": task, "slope": slope.square().sum()}


def small_network() -> Network:
    """One layer of each kind: compiling takes as long as there are operations, and proves as much of few."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        conv = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU())
        return Network("small", {"conv": conv, "head": nn.Sequential(nn.Flatten(), nn.Linear(54, 10))}, cut="conv")


def distance_and_events(
    method: object, mode: str, rounds: int = 2, compiled: str = "steps", net: Network | None = None
) -> tuple[float, list[str]]:
    training = {"optimizer": "sgd", "lr": 0.02, "epochs": 1, "batch": 8}
    clients = digits_federation(8, (12, 20, 12, 9, 12, 12, 12, 12))
    job = in_double(job_of(method, clients, net=net or small_network(), training=training))  # type: ignore[arg-type]
    expected = run(job, rounds=rounds, cohort=6).server
    options = Options(device="cpu", mode=mode, stack=4, compiled=compiled, layout="plain")  # type: ignore[arg-type]
    recorder = run(job, rounds=rounds, cohort=6, executor=Device(job, options=options))
    return gap(recorder.server, expected), recorder.events


@pytest.mark.parametrize("mode", ["graphs", "stacked"])
@pytest.mark.parametrize(
    "name",
    ["fedavg", "flea", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("fedfa", "scaffold", "fedsam"))],
)
def test_a_compiled_step_agrees_with_the_reference(name: str, mode: str) -> None:
    assert distance_and_events(choose(name).method, mode)[0] < EXACT


@pytest.mark.parametrize("mode", ["graphs", "stacked"])
def test_a_step_that_reads_the_clock_is_not_run_with_an_old_rounds_numbers(mode: str) -> None:
    assert distance_and_events(Warming(), mode, rounds=3)[0] < EXACT


@pytest.mark.parametrize("name", ["fedavg", "flea", pytest.param("fedfa", marks=pytest.mark.thorough)])
def test_fused_parts_agree_with_the_reference(name: str) -> None:
    # Two layers, whose sizes differ, share what was compiled.
    distance, events = distance_and_events(choose(name).method, "graphs", compiled="parts", net=digits_network())
    assert distance < EXACT
    assert events == []


def test_a_loss_that_differentiates_inside_itself_runs_without_fused_parts() -> None:
    distance, events = distance_and_events(FedFA(inner=Smooth()), "graphs", compiled="parts")
    assert distance < EXACT
    assert len(events) == 1
    assert events[0].startswith("phase 'train' runs without fused parts: ")


@pytest.mark.parametrize(("seconds", "told"), [(0.0, 1), (1e9, 0)], ids=["long", "short"])
def test_a_long_run_tries_whether_fused_parts_are_faster(
    seconds: float, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_WORTH_TRYING", seconds)
    # Side by side would win on a CPU, and has no fused parts.
    monkeypatch.setattr(Device, "_timed", partialmethod(_graphs_first, Device._timed))
    distance, events = distance_and_events(choose("fedfa").method, "auto", compiled="auto")
    assert distance < EXACT
    (said,) = (event for event in events if event.startswith("fused parts of fedfa(fedavg): "))
    assert ("without a trial" not in said) == told


def _graphs_first(device: Device, timed: Any, mode: str, *rest: Any) -> float:
    seconds: float = timed(device, mode, *rest)
    return seconds if mode == "graphs" else 1e6


def test_marked_functions_are_plain_unless_somebody_asks() -> None:
    calls = []

    @fusable
    def twice(x: Tensor) -> Tensor:
        calls.append(1)
        return 2 * x

    noting = Fusion(on=False)
    assert torch.equal(twice(torch.ones(2)), torch.full((2,), 2.0))
    assert not noting.met
    with noting.asked():
        twice(torch.ones(2))
    assert noting.met
    assert len(calls) == 2


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
