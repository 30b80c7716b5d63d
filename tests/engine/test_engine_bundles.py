"""Bundles: several clients side by side in a worker process, and the trial that says whether that pays."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fewfed import tree
from fewfed.conformance.differences import differences
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.choices import Answer, Choices
from fewfed.engine.executor import Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers import trial
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.messages import packed, unpacked
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.executors.workers.stacking import bundles
from fewfed.engine.executors.workers.trial import Way
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.loop import run_rounds
from fewfed.engine.outcomes import Done, Outcome
from fewfed.engine.packet import Packet
from fewfed.engine.turn import Member
from fewfed.errors import ConfigError
from fewfed.method import Batch, Context, Method, Report
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from fewfed.runs.executors import Surroundings, executor_for, refuse_unused
from fewfed.runs.experiment import resolve
from fewfed.tree import Tree
from support import EXACT, Recorder, briefing_of, digits_federation, gap, in_double, job_of, run, states

pytestmark = pytest.mark.timeout(120)

UNEVEN = (5, 12, 8, 30, 12, 9, 20, 12, 17, 12)
SGD = {"optimizer": "sgd", "lr": 0.02, "epochs": 2, "batch": 8}


@contextmanager
def workers(job: Job, stack: int, processes: int = 2, choices: Choices | None = None) -> Iterator[Workers]:
    executor = Workers(job, options=Options(processes, stack, layout="plain"), choices=choices)
    try:
        yield executor
    finally:
        executor.close()


def even_job(method: str | Method, clients: int = 16) -> Job:
    return in_double(job_of(method, digits_federation(clients, 12), training=SGD))


def stacked(job: Job, stack: int = 4, rounds: int = 2, choices: Choices | None = None) -> Recorder:
    with workers(job, stack, choices=choices) as executor:
        return run(job, rounds=rounds, cohort=len(job.federation), executor=executor)


def packets(outcomes: Iterable[Outcome]) -> list[Packet]:
    """Of clients that were accepted, as they come."""
    return [outcome.packet for outcome in outcomes if isinstance(outcome, Done)]


def alone(job: Job, rounds: int = 2) -> Recorder:
    return run(job, rounds=rounds, cohort=len(job.federation))


@dataclass(frozen=True)
class Disturbed(FedAvg):
    """FedAvg in which something happens when a client begins, which a stack has its clients do one after another."""

    happens: Callable[[Context], None] = lambda ctx: None
    ends: Callable[[Context], None] = lambda ctx: None

    def begin(self, ctx: Context) -> Tree:
        self.happens(ctx)
        return super().begin(ctx)

    def end(self, work: Tree, ctx: Context) -> Report:
        self.ends(ctx)
        return super().end(work, ctx)


@dataclass(frozen=True)
class ReadsTheClient(FedAvg):
    """A loss with a number of one client in it: it cannot be stacked."""

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return {name: value * (1 + ctx.client) for name, value in super().loss(work, ctx, batch).items()}


def kills(client: int, unless: Path | None = None) -> Callable[[Context], None]:
    """This client takes its worker down, every time or until the file is there."""
    home = os.getpid()

    def happens(ctx: Context) -> None:
        if ctx.client == client and not (unless and unless.exists()):
            assert os.getpid() != home
            if unless:
                unless.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return happens


def raises(error: Exception, *clients: int) -> Callable[[Context], None]:
    def happens(ctx: Context) -> None:
        if ctx.client in clients:
            raise error

    return happens


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "flea", "fedfa", "fedbn", "flute", "sem(fedavg)"])
def test_bundles_agree_with_the_reference_for_uneven_clients(name: str) -> None:
    chosen = choose(name)
    job = in_double(job_of(chosen.method, digits_federation(10, UNEVEN), training={**chosen.training, **SGD}))
    reference = Sequential(job)
    expected = run(job, rounds=3, cohort=8, executor=reference)
    with workers(job, stack=4) as executor:
        found = run(job, rounds=3, cohort=8, executor=executor)
        kept, left = states(executor, 10), states(reference, 10)
    assert gap(found.views[-1].server, expected.views[-1].server) < EXACT
    assert kept.keys() == left.keys()
    assert all(gap(kept[client], left[client]) < EXACT for client in left)
    for ours, theirs in zip(found.metrics, expected.metrics, strict=True):
        assert ours["failed"] == theirs["failed"] == []
        assert (ours["bytes"], ours["steps"]) == (theirs["bytes"], theirs["steps"])
    assert not found.events


def test_bundles_are_stacked_indeed() -> None:
    """Rounding tells: clients side by side multiply in another order."""
    job = even_job("fedavg")
    assert differences(stacked(job).server, alone(job).server)
    assert not differences(stacked(job, stack=1).server, alone(job).server)


@pytest.mark.parametrize("name", ["fedavg", "flea"])
def test_stacked_runs_repeat_bit_for_bit_also_when_they_are_taken_up_again(name: str) -> None:
    job = even_job(name, clients=8)
    whole = stacked(job, rounds=4).server
    assert not differences(stacked(job, rounds=4).server, whole)
    parts = None
    for start, rounds in ((0, 2), (2, 4)):
        recorder = Recorder()
        with workers(job, stack=4) as executor:
            # The clock counts to the end of the run in both parts, so a part is cut out of the whole.
            parts = run_rounds(job, executor, [recorder], rounds=rounds, cohort=8, server=parts, start=start)
    assert parts is not None
    assert not differences(parts, whole)


@pytest.mark.parametrize(
    ("count", "processes", "size", "sizes"),
    [(10, 2, 4, [4, 4, 1, 1]), (5, 2, 64, [3, 2]), (3, 4, 8, [1, 1, 1]), (33, 4, 32, [9, 9, 9, 6]), (0, 2, 4, [])],
)
def test_bundles_keep_every_process_busy(count: int, processes: int, size: int, sizes: list[int]) -> None:
    cut = list(bundles((Member(k) for k in range(count)), processes, size))
    assert [len(bundle) for bundle in cut] == sizes
    assert [member.client for bundle in cut for member in bundle] == list(range(count))


@pytest.mark.parametrize(("stack", "size"), [(4, 4), (0, trial.WIDTH)])
def test_a_phase_of_everybody_is_taken_in_parts(stack: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However late the first worker is: turns that run, turns that wait for it, one more part."""
    most = 2 * size * (2 + 8 + 1 + 1)
    monkeypatch.setattr(trial, "MARGIN", 1e9)

    def make(client: int) -> Examples:
        generator = torch.Generator().manual_seed(client)
        return Examples(torch.rand(12, 1, 8, 8, generator=generator), torch.randint(0, 10, (12,), generator=generator))

    job = job_of("fedavg", GeneratedFederation(10**6, make, make(0), classes=10), training=SGD)
    asked = 0

    def everybody() -> Iterator[Invited]:
        nonlocal asked
        for client in range(len(job.federation)):
            asked += 1
            yield Invited(client, {})

    with workers(job, stack) as executor:
        outcomes = executor.run(briefing_of(job, Clock(0, 1, 1)), everybody())
        assert [packet.sender for packet in packets(islice(outcomes, 6))] == list(range(6))
        assert asked <= most


def test_a_worker_killed_in_a_bundle_is_replaced_and_changes_nothing(tmp_path: Path) -> None:
    job = even_job(Disturbed(happens=kills(5, unless=tmp_path / "died")))
    survived = stacked(job)
    assert (tmp_path / "died").exists()
    assert not differences(survived.server, stacked(even_job(FedAvg())).server)
    (event,) = survived.events
    assert "signal 9" in event
    assert "4, 5, 6, 7" in event
    assert all(not metrics["failed"] for metrics in survived.metrics)


def test_a_client_that_always_kills_its_worker_is_left_out_of_its_bundle() -> None:
    survived = stacked(even_job(Disturbed(happens=kills(5))))
    without = alone(even_job(Disturbed(happens=raises(RuntimeError("out"), 5))))
    for metrics in survived.metrics:
        (failure,) = metrics["failed"]
        assert (failure["client"], failure["phase"]) == (5, "train")
        assert "died" in failure["reason"]
    assert gap(survived.server, without.server) < EXACT


@pytest.mark.parametrize("error", [RuntimeError("unplugged"), KeyError("unplugged"), ConfigError("unplugged")])
@pytest.mark.parametrize("when", ["happens", "ends"])
def test_a_client_that_fails_in_a_bundle_is_left_out_alone(error: Exception, when: str) -> None:
    job = even_job(Disturbed(**{when: raises(error, 1, 6)}))
    expected, found = alone(job), stacked(job)
    for ours, theirs in zip(found.metrics, expected.metrics, strict=True):
        assert ours["failed"] == theirs["failed"]
        assert [failure["client"] for failure in ours["failed"]] == [1, 6]
    assert gap(found.server, expected.server) < EXACT


def test_a_client_without_rows_in_a_bundle_is_left_out_alone() -> None:
    job = in_double(job_of("fedavg", digits_federation(6, (12, 0, 12, 12, 0, 12)), training=SGD))
    expected, found = alone(job), stacked(job)
    assert [metrics["failed"] for metrics in found.metrics] == [metrics["failed"] for metrics in expected.metrics]
    assert gap(found.server, expected.server) < EXACT


def test_what_cannot_be_stacked_runs_one_by_one_and_says_so_once() -> None:
    job = even_job(ReadsTheClient())
    found = stacked(job)
    (event,) = found.events
    assert event.startswith("phase 'train' runs without stacks: ")
    assert "ctx.client" in event
    assert "device" not in event
    assert not differences(found.server, alone(job).server)


@pytest.fixture
def any_run(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Short runs and slow machines are tried as well."""
    monkeypatch.setattr(trial, "SHORT", 0.0)
    monkeypatch.setattr(trial, "STEP_LIMIT", 1e9)
    return monkeypatch


@pytest.mark.parametrize(("margin", "way"), [(1e9, "side by side"), (0.0, "one by one")])
def test_timing_chooses_once_and_says_what_it_saw(any_run: pytest.MonkeyPatch, margin: float, way: str) -> None:
    any_run.setattr(trial, "MARGIN", margin)
    job = even_job("fedavg")
    found, expected = stacked(job, stack=0), alone(job)
    (event,) = found.events
    assert event.startswith(f"clients of phase 'train': {way}, timed on 8: one by one ")
    assert "ms a client step" in event
    assert gap(found.server, expected.server) < EXACT
    assert bool(differences(found.server, expected.server)) == (way == "side by side")


def test_a_slow_step_a_short_run_and_few_clients_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MARGIN", 1e9)
    job = even_job("fedavg")
    reference = alone(job).server
    monkeypatch.setattr(trial, "STEP_LIMIT", 1e9)
    found = stacked(job, stack=0)
    assert "one by one, without a trial of stacks: the run trains for" in found.events[0]
    assert not differences(found.server, reference)
    monkeypatch.setattr(trial, "STEP_LIMIT", 0.0)
    found = stacked(job, stack=0)
    assert "one by one, without a trial of stacks: a step takes" in found.events[0]
    assert not differences(found.server, reference)
    few = even_job("fedavg", clients=2 * trial.LEAST - 2)
    found = stacked(few, stack=0)
    assert not found.events
    assert not differences(found.server, alone(few).server)


def test_a_method_that_cannot_be_stacked_stays_one_by_one(any_run: pytest.MonkeyPatch) -> None:
    any_run.setattr(trial, "MARGIN", 1e9)
    job = even_job(ReadsTheClient())
    found = stacked(job, stack=0)
    (event,) = found.events
    assert event.startswith("clients of phase 'train': one by one, since phase 'train' runs without stacks: ")
    assert "ctx.client" in event
    assert not differences(found.server, alone(job).server)


def test_a_trial_that_takes_its_worker_down_is_no_choice_for_stacks(any_run: pytest.MonkeyPatch) -> None:
    job = even_job(Disturbed(happens=kills(5)))
    found = stacked(job, stack=0, rounds=1)
    assert any("clients of phase 'train': one by one, since the trial failed" in event for event in found.events)
    assert [failure["client"] for failure in found.metrics[0]["failed"]] == [5]


def test_clients_that_fail_first_do_not_decide(any_run: pytest.MonkeyPatch) -> None:
    any_run.setattr(trial, "MARGIN", 1e9)
    job = even_job(Disturbed(ends=raises(RuntimeError("unplugged"), 0, 1)))
    found = stacked(job, stack=0, rounds=1)
    unknown, event = found.events  # The blank client is number 0 as well.
    assert unknown.startswith("phase 'train': what its uploads look like is taken from the first one (RuntimeError")
    assert "side by side" in event
    assert [failure["client"] for failure in found.metrics[0]["failed"]] == [0, 1]


def test_phases_choose_for_themselves_and_those_without_training_do_not(any_run: pytest.MonkeyPatch) -> None:
    any_run.setattr(trial, "MARGIN", 1e9)
    job = even_job("sem(fedavg)")
    trained = [phase.name for phase in job.method.phases(Clock(0, 2, 2)) if phase.epochs]
    assert len(trained) > 1
    found = stacked(job, stack=0)
    assert [event.split("'")[:2] for event in found.events] == [["clients of phase ", name] for name in trained]
    assert gap(found.server, alone(job).server) < EXACT


def test_a_choice_that_was_made_before_is_kept(any_run: pytest.MonkeyPatch) -> None:
    any_run.setattr(trial, "MARGIN", 1e9)
    job = even_job("fedavg")
    for way in Way:
        choices = chosen(way)
        found = stacked(job, stack=0, choices=choices)
        assert not found.events
        assert bool(differences(found.server, alone(job).server)) == (way is not Way.ONE_BY_ONE)
        assert [answer.value for answer in choices.known().values()] == [way]


def chosen(way: str) -> Choices:
    choices = Choices()
    choices.keep("workers, phase train", Answer(way, "timed on 8"))
    return choices


def test_what_was_chosen_is_handed_in(any_run: pytest.MonkeyPatch) -> None:
    any_run.setattr(trial, "MARGIN", 1e9)
    choices = Choices()
    stacked(even_job("fedavg"), stack=0, choices=choices)
    (answer,) = choices.known().values()
    assert answer.value == Way.STACKED
    assert answer.why.startswith("timed on 8: ")


def test_an_answer_of_no_known_kind_is_no_answer(any_run: pytest.MonkeyPatch) -> None:
    any_run.setattr(trial, "MARGIN", 0.0)
    assert stacked(even_job("fedavg"), stack=0, choices=chosen("upside down")).metrics[0]["failed"] == []


def test_an_experiment_says_how_many_and_its_past_says_what_was_chosen(any_run: pytest.MonkeyPatch) -> None:
    any_run.setattr(trial, "MARGIN", 1e9)
    job = even_job("fedavg")
    for settings, before, around, exact in (
        ({}, Choices(), Surroundings(), False),
        ({}, chosen(Way.ONE_BY_ONE), Surroundings(), True),
        ({"workers.stack": 1}, Choices(), Surroundings(), True),
        ({"workers.stack": 4}, chosen(Way.ONE_BY_ONE), Surroundings(), False),
        ({"exact": True}, Choices(), Surroundings(), True),
        ({}, Choices(), Surroundings(is_compared=True), True),
    ):
        resolved = resolve("fedavg", {"executor": "workers", "workers.processes": 2, **settings})
        executor = executor_for(resolved, job, SimulatedHomes(job), 16, around, before)
        try:
            found = run(job, cohort=16, executor=executor)
        finally:
            executor.close()
        assert bool(differences(found.server, alone(job).server)) != exact


@pytest.mark.parametrize("executor", ["sequential", "cuda"])
def test_stacks_of_the_workers_are_refused_elsewhere(executor: str) -> None:
    resolved = resolve("fedavg", {"executor": executor, "workers.stack": 8})
    with pytest.raises(ConfigError, match=f"workers.stack = 8 needs executor 'workers', not '{executor}'"):
        refuse_unused(resolved, cohort=4)


def test_packed_trees_come_back_whole() -> None:
    trees: list[Tree] = [
        {"upload": {"w": torch.randn(3, 2), "n": torch.tensor(7), "on": torch.tensor([True, False])}, "state": {}},
        {},
        {"upload": {"w": torch.randn(5, 2), "none": torch.zeros(0, 4)}, "state": {"deep": {"w": torch.randn(())}}},
    ]
    arrays = packed(trees)
    assert len(list(tree.leaves(arrays))) == 4
    for found, expected in zip(unpacked(arrays), trees, strict=True):
        assert not differences(found, expected)
    assert unpacked(packed([{}, {}])) == [{}, {}]


def test_outcomes_of_a_bundle_come_in_the_order_of_the_members() -> None:
    job = job_of("fedavg", digits_federation(10, UNEVEN), training=SGD)
    briefing = briefing_of(job, Clock(0, 1, 2))
    members = [Invited(k, {}) for k in (7, 2, 9, 0, 4, 1)]
    with workers(job, stack=3) as executor:
        found = [(packet.sender, packet.steps) for packet in packets(executor.run(briefing, members))]
    expected = [(packet.sender, packet.steps) for packet in packets(Sequential(job).run(briefing, members))]
    assert [client for client, _ in expected] == [member.client for member in members]
    assert found == expected
