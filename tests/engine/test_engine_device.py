"""The device executor on the CPU: the same static memory, stacks and masks, only without capturing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.executor import Executor
from fewfed.engine.executors.cuda import lanes
from fewfed.engine.executors.cuda.board import Board
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.lane import Lane
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.optimizer import LocalOptimizer
from fewfed.errors import ConfigError
from fewfed.method import Batch, Context, Differentiate, Method
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.registry import choose, registered
from fewfed.phase import Phase
from fewfed.runs.executors import executor_for
from fewfed.runs.experiment import resolve
from fewfed.training import Optimizer
from fewfed.tree import Tree
from support import EXACT, Recorder, digits_federation, gap, in_double, job_of, run, states

UNEVEN = (5, 12, 8, 30, 12, 9, 20, 12, 17, 12)
"""Rows of the clients: other numbers of steps, and some with batches of their own size."""

EVEN = (14,) * 10
"""Clients like each other: what they report can be asked of a whole stack."""


STEP_BY_STEP = ("fedfa-anchor",)
"""What cannot be captured, as the conformance suite shows; all others must not fall back to it unnoticed."""


def device(mode: str, job: Job, homes: SimulatedHomes | None = None) -> Device:
    return Device(job, homes, Options(device="cpu", mode=mode, streams=2, stack=4))  # type: ignore[arg-type]


MODES = [("graphs", UNEVEN), ("stacked", UNEVEN), ("stacked", EVEN)]
OFTEN = ("fedavg", "flea", "scaffold", "fedfa", "fedmix", "fedfa-anchor")
"""Methods that are looked at in every mode each time; the others in stacks, where more can go wrong."""


def in_modes() -> list[Any]:
    return [
        pytest.param(name, *mode, marks=[] if mode == ("stacked", UNEVEN) or name in OFTEN else pytest.mark.thorough)
        for name in registered()
        for mode in MODES
    ]


SHORTER: dict[str, dict[str, int]] = {
    "ccvr": {"epochs": 2},
    "fedgen": {"start": 1, "steps": 4, "batch": 16},
    "fedgen-latent": {"steps": 4, "batch": 16},
    "flair": {"init_epochs": 1},
}
"""What a method does often, only a few times, and from the second round on what it begins with later."""


def job_for(name: str, sizes: tuple[int, ...]) -> Job:
    chosen = choose(name, SHORTER.get(name, {}))
    training = {**chosen.training, "optimizer": "sgd", "lr": 0.02, "epochs": 2, "batch": 8}
    return job_of(chosen.method, digits_federation(10, sizes), training=training)


def counted(recorder: Recorder) -> list[dict[str, Any]]:
    """What does not depend on rounding."""
    wanted = ("bytes", "steps", "failed", "round")
    return [{name: metrics[name] for name in wanted} for metrics in recorder.metrics]


@dataclass(frozen=True)
class Standing:
    """What server and clients know between two rounds."""

    server: Tree
    clients: dict[int, Tree]

    def homes(self, job: Job) -> SimulatedHomes:
        """Homes whose clients remember this, and may be left with something else."""
        homes = SimulatedHomes(job)
        for client, state in self.clients.items():
            homes.keep(REMEMBERING, client, tree.clone(state))
        return homes


REMEMBERING = Phase("train", Method(), keeps_state=True)


@lru_cache(2)
def reference(name: str, sizes: tuple[int, ...]) -> tuple[Job, list[tuple[Standing, Recorder, Standing]]]:
    """Two rounds of the reference, each with where it began and ended; the same for every mode."""
    job = in_double(job_for(name, sizes))
    now, rounds = Standing(job.method.server_init(job.setup), {}), []
    for round in range(2):
        homes = now.homes(job)
        found = one_round(job, round, now, Sequential(job, homes))
        after = Standing(found.server, states(homes, len(sizes)))
        rounds.append((now, found, after))
        now = after
    return job, rounds


def one_round(job: Job, round: int, before: Standing, executor: Executor) -> Recorder:
    server = tree.clone(before.server)
    return run(job, rounds=round + 1, cohort=6, start=round, server=server, executor=executor)


@pytest.mark.parametrize(("name", "mode", "sizes"), in_modes())
def test_every_method_agrees_with_the_reference(name: str, mode: str, sizes: tuple[int, ...]) -> None:
    """Round by round, each from where the reference stands: what one round magnifies, the next would magnify again."""
    job, rounds = reference(name, sizes)
    for round, (before, expected, after) in enumerate(rounds):
        executor = device(mode, job, before.homes(job))
        found = one_round(job, round, before, executor)
        assert gap(found.server, after.server) < EXACT
        remembered = states(executor, len(sizes))
        assert remembered.keys() == after.clients.keys()
        assert all(gap(remembered[client], state) < EXACT for client, state in after.clients.items())
        assert counted(found) == counted(expected)
        assert (found.events == []) == (name not in STEP_BY_STEP), found.events
    single = [path for path, leaf in tree.leaves(after.server) if leaf.dtype == torch.float32]
    assert single == []


@pytest.mark.parametrize(
    "settings", [{"optimizer": "adam"}, {"optimizer": "adamw", "weight_decay": 0.1}, {"clip": 0.5}]
)
@pytest.mark.parametrize("mode", ["graphs", "stacked"])
def test_optimisers_agree_for_uneven_clients(settings: dict[str, object], mode: str) -> None:
    training = {"epochs": 2, "batch": 8, "lr": 1e-3, **settings}
    job = in_double(job_of("fedavg", digits_federation(10, UNEVEN), training=training))
    assert gap(run(job, executor=device(mode, job)).server, run(job).server) < EXACT


@pytest.mark.parametrize(
    "settings", [Optimizer("sgd", momentum=0.9, weight_decay=0.01), Optimizer("adam"), Optimizer("adamw")]
)
def test_a_client_that_has_finished_keeps_everything(settings: Optimizer) -> None:
    torch.manual_seed(0)
    start = [torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 2, 2, dtype=torch.float64)]
    stack = [leaf.clone() for leaf in start]
    stacked = LocalOptimizer(settings, stack, 3)
    lengths = (1, 4, 2)
    grads = [[torch.randn_like(leaf) for leaf in start] for _ in range(4)]
    for step in range(4):
        stacked.step(
            grads[step], torch.tensor(0.1, dtype=torch.float64), torch.tensor([step < length for length in lengths])
        )
    for client, length in enumerate(lengths):
        alone = [leaf[client].clone() for leaf in start]
        local = LocalOptimizer(settings, alone)
        for step in range(length):
            local.step([g[client].clone() for g in grads[step]], 0.1)
        for found, expected in zip(stack, alone, strict=True):
            torch.testing.assert_close(found[client], expected, rtol=0, atol=1e-12)


def test_both_modes_are_timed_and_the_choice_is_said() -> None:
    job = job_of("fedavg", digits_federation(10, 12))
    said = run(job, executor=device("auto", job)).events
    assert (
        len([event for event in said if event.startswith("mode: ") and "graphs" in event and "stacked" in event]) == 1
    )


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> Callable[[], set[int]]:
    """How many clients side by side the steps have that are still in memory."""
    made: list[weakref.ref[Lane]] = []

    class Watched(Lane):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            made.append(weakref.ref(self))

    def found() -> set[int]:
        gc.collect()
        return {lane.width for each in made if (lane := each()) is not None}

    monkeypatch.setattr(lanes, "Lane", Watched)
    return found


def test_what_was_recorded_only_for_the_trial_is_not_kept(widths: Callable[[], set[int]]) -> None:
    """Stacks of a large network hold tens of gigabytes of a GPU, which other runs may need."""
    job = job_of("fedavg", digits_federation(10, 12))
    executor = device("auto", job)
    said = run(job, executor=executor, cohort=8).events
    chosen = next(event for event in said if event.startswith("mode: ")).split()[1].strip(",:")
    assert chosen in ("graphs", "stacked")
    assert {width > 1 for width in widths()} == {chosen == "stacked"}


def test_a_trial_for_which_memory_does_not_suffice_leaves_the_other_mode(
    widths: Callable[[], set[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = Lane.record

    def refuse_stacks(lane: Lane, *args: Any, **named: Any) -> None:
        if lane.width > 1:
            raise torch.cuda.OutOfMemoryError("no room for a stack")
        record(lane, *args, **named)

    monkeypatch.setattr(Lane, "record", refuse_stacks)
    job = in_double(job_of("fedavg", digits_federation(10, 12)))
    executor = device("auto", job)
    found = run(job, executor=executor, cohort=8)
    assert any("no room for a stack" in event for event in found.events)
    assert widths() == {1}
    assert gap(found.server, run(job, cohort=8).server) < EXACT


@dataclass(frozen=True)
class ReadsTheClient(FedAvg):
    """A loss with a number of one client in it."""

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return {name: value * (1 + ctx.client) for name, value in super().loss(work, ctx, batch).items()}


@dataclass(frozen=True)
class ReadsTheRound(FedAvg):
    """A loss with the round in it."""

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return {name: value / (1 + ctx.clock.round) for name, value in super().loss(work, ctx, batch).items()}


@pytest.mark.parametrize("method", [ReadsTheClient(), ReadsTheRound()])
@pytest.mark.parametrize("mode", ["graphs", "stacked"])
def test_python_numbers_are_never_frozen_into_a_step(method: Method, mode: str) -> None:
    training = {"optimizer": "sgd", "lr": 0.001, "epochs": 1, "batch": 8}
    job = in_double(job_of(method, digits_federation(10, 12), training=training))
    found = run(job, rounds=3, executor=device(mode, job))
    assert gap(found.server, run(job, rounds=3).server) < EXACT
    assert any("ctx.client" in event for event in found.events) == isinstance(method, ReadsTheClient)


@dataclass(frozen=True)
class ReadsTheWholeBuffer(type(choose("flea").method)):  # type: ignore[misc]
    """A loss that looks at all shared rows, not at rows it drew."""

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        terms = super().loss(work, ctx, batch)
        shared = ctx.shared.get("features")
        return terms if shared is None else {**terms, "level": work["params"]["head.bias"].sum() * shared.mean()}


@pytest.mark.parametrize("method", [choose("flea").method, ReadsTheWholeBuffer()])
def test_a_buffer_that_changes_its_length_is_read_right(method: Method) -> None:
    training = {"optimizer": "sgd", "lr": 0.02, "epochs": 1, "batch": 8}
    job = in_double(job_of(method, digits_federation(10, UNEVEN), training=training))
    assert gap(run(job, rounds=5, executor=device("graphs", job)).server, run(job, rounds=5).server) < EXACT


def test_a_board_has_room_that_shows_being_read() -> None:
    first = {"model": torch.ones(3), "rows": torch.ones(4, 2)}
    board = Board.for_(first, None, exact=False)
    assert board.fits(first)
    assert not board.padded
    longer = {"model": torch.ones(3), "rows": torch.ones(6, 2)}
    assert not board.fits(longer)
    grown = Board.for_(longer, board, exact=False)
    grown.write(longer)
    assert grown.padded
    assert bool(grown.static["rows"][:6].eq(1).all())
    assert bool(grown.static["rows"][6:].isnan().all())
    assert grown.fits({"model": torch.ones(3), "rows": torch.ones(5, 2)})
    assert not Board.for_(longer, board, exact=True).padded


def test_what_cannot_be_had_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'float32' \| 'tf32' \| 'bf16'"):
        resolve("fedavg", {"executor": "cuda", "cuda.precision": "fp8"})
    if not torch.cuda.is_available():
        job, resolved = job_of("fedavg"), resolve("fedavg", {"executor": "cuda"})
        with pytest.raises(ConfigError, match="no CUDA device"):
            executor_for(resolved, job, SimulatedHomes(job), cohort=3)


@pytest.mark.parametrize("at_once", [1, 3, 6, 7])
def test_a_phase_in_parts_is_the_same_phase(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = in_double(job_of("fedmix", digits_federation(6, UNEVEN[:6]), training={"optimizer": "sgd", "lr": 0.02}))
    expected = run(job, cohort=6)
    monkeypatch.setattr("fewfed.engine.executors.cuda.executor._AT_ONCE", at_once)
    assert gap(run(job, cohort=6, executor=device("graphs", job)).server, expected.server) < EXACT


@dataclass(frozen=True)
class BreaksOneClient(FedAvg):
    """A finite loss whose gradient is not a number for clients that hold a label 0."""

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        gradient, terms = differentiate(work)
        broken = torch.where(ctx.counts[0] > 0, float("nan"), 0.0)
        return tree.map(lambda leaf: leaf + broken, gradient), terms


@pytest.mark.parametrize("mode", ["graphs", "stacked"])
def test_parameters_that_are_no_numbers_are_left_out(mode: str) -> None:
    training = {"optimizer": "sgd", "lr": 0.02, "epochs": 1, "batch": 12}
    job = in_double(job_of(BreaksOneClient(), digits_federation(6, 12), training=training))
    expected, found = run(job, rounds=1, cohort=6), run(job, rounds=1, cohort=6, executor=device(mode, job))
    left_out = [failure["client"] for failure in expected.metrics[0]["failed"]]
    assert 0 < len(left_out) < 6
    assert sorted(failure["client"] for failure in found.metrics[0]["failed"]) == sorted(left_out)
    assert gap(found.server, expected.server) < EXACT


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_scores_do_not_depend_on_how_kernels_lie(precision: str) -> None:
    job = job_of("fedavg", digits_federation(4, 12))
    executor = Device(job, options=Options(device="cpu", precision=precision))
    models = [job.net.model(), run(job).server["model"]]
    expected = Sequential(job).evaluate(models)
    for ours, theirs in zip(executor.evaluate(models), expected, strict=True):
        found, wanted = ours.as_json(), theirs.as_json()
        assert found.pop("loss") == pytest.approx(wanted.pop("loss"), rel=1e-6)
        (*counts, sums), (*wanted_counts, wanted_sums) = found.pop("bins"), wanted.pop("bins")
        assert counts == wanted_counts
        assert sums == pytest.approx(wanted_sums, rel=1e-6), "of probabilities"
        assert found == wanted
