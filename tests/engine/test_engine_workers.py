"""Worker processes: the same bits as one process, through deaths and all."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from probes import ExtraTerm, Interrupted, fail, kill, kill_both_once, kill_once
from processes import children, open_files

from fewfed import tree
from fewfed.conformance.differences import differences, without_seconds
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.events import Event, WorkerDied
from fewfed.engine.executor import Executor, Invited
from fewfed.engine.executors.local import LocalExecutor
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.job import Job
from fewfed.engine.loop import Observer, RoundView, run_rounds
from fewfed.engine.outcomes import Done, Failed, Outcome, Partial
from fewfed.method import Context, Method
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import Clock
from fewfed.tree import Tree
from support import Recorder, briefing_of, digits_federation, job_of, states

pytestmark = pytest.mark.timeout(60)


@contextmanager
def workers(job: Job, processes: int) -> Iterator[Workers]:
    executor = Workers(job, options=Options(processes, stack=1, layout="plain"))
    try:
        yield executor
    finally:
        executor.close()


def small_job(method: str | Method, clients: int = 5) -> Job:
    return job_of(method, digits_federation(clients, [6, 9, 3, 12, 7, 5, 8, 4][:clients]), training={"epochs": 1})


@dataclass(frozen=True)
class Came:
    """What one member came to, and what it remembers afterwards."""

    outcome: Outcome
    state: Tree | None


def outcomes(executor: LocalExecutor, job: Job, members: Iterable[Invited]) -> list[Came]:
    """One training phase, every outcome copied out of the executor's memory."""
    briefing = briefing_of(job, Clock(0, 1, job.training.epochs))
    found = [_copied(outcome) for outcome in executor.run(briefing, members)]
    return [Came(outcome, executor.homes.remembered(_client(outcome))) for outcome in found]


def _copied(outcome: Outcome) -> Outcome:
    if isinstance(outcome, Done):
        return Done(dataclasses.replace(outcome.packet, arrays=tree.clone(outcome.packet.arrays)))
    return outcome


def _client(outcome: Outcome) -> int:
    assert not isinstance(outcome, Partial)
    return outcome.client if isinstance(outcome, Failed) else outcome.packet.sender


def assert_same_outcomes(left: list[Came], right: list[Came]) -> None:
    assert [type(came.outcome) for came in left] == [type(came.outcome) for came in right]
    for ours, theirs in zip(left, right, strict=True):
        assert not differences({"state": ours.state or {}}, {"state": theirs.state or {}})
        if isinstance(ours.outcome, Done) and isinstance(theirs.outcome, Done):
            mine, other = ours.outcome.packet, theirs.outcome.packet
            assert dataclasses.replace(mine, arrays={}) == dataclasses.replace(other, arrays={})
            assert not differences(mine.arrays, other.arrays)
        else:
            assert ours.outcome == theirs.outcome


def invited(clients: int) -> list[Invited]:
    return [Invited(client, {}) for client in range(clients)]


@dataclass(frozen=True)
class Ran:
    """A finished run: the server's tree, every client's state, each round's metrics."""

    server: Tree
    states: dict[int, Tree]
    metrics: list[dict[str, Any]]


def ran(job: Job, executor: Executor, rounds: int = 2, observers: tuple[Observer, ...] = ()) -> Ran:
    recorder = Recorder()
    everyone = len(job.federation)
    server = run_rounds(job, executor, [Evaluate(), *observers, recorder], rounds=rounds, cohort=everyone)
    return Ran(server, states(executor, everyone), [without_seconds(metrics) for metrics in recorder.metrics])


def quiet(metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in one.items() if name != "events"} for one in metrics]


@pytest.mark.parametrize("method", ["fedavg", "local", "flea"])
@pytest.mark.parametrize("processes", [1, 2, 8])
def test_outcomes_are_those_of_one_process_whether_workers_are_few_or_many(method: str, processes: int) -> None:
    job = small_job(method)
    members = invited(5)
    with workers(job, processes) as executor:
        assert_same_outcomes(outcomes(executor, job, members), outcomes(Sequential(job), job, members))


def test_no_members_at_all_is_no_outcome() -> None:
    job = small_job("fedavg")
    with workers(job, 2) as executor:
        assert outcomes(executor, job, []) == []


@pytest.mark.parametrize("method", ["fedavg", "local", "flea", "single"])
def test_whole_runs_are_those_of_one_process(method: str) -> None:
    job = small_job(method)
    alone = ran(job, Sequential(job))
    with workers(job, 2) as executor:
        together = ran(job, executor)
    assert not differences(together.server, alone.server)
    assert together.states.keys() == alone.states.keys()
    assert all(not differences(together.states[k], alone.states[k]) for k in alone.states)
    assert together.metrics == alone.metrics


def test_scores_are_those_of_one_process_over_several_parts_of_the_test_rows() -> None:
    job = small_job("fedavg")
    doubled = job.federation.test.join(job.federation.test)
    job.federation.test = doubled  # type: ignore[misc]
    assert len(doubled) > 500
    models = [job_of("fedavg", net=None, seed=s).net.model() for s in (0, 1)] + [job.net.model()]
    with workers(job, 3) as executor:
        shared, alone = executor.evaluate(models), Sequential(job).evaluate(models)
    assert [score.loss for score in shared] == [score.loss for score in alone]
    assert all(
        torch.equal(a.correct, b.correct) and torch.equal(a.total, b.total) for a, b in zip(shared, alone, strict=True)
    )


def test_failures_are_reported_the_same_way() -> None:
    job = small_job(Interrupted(happens=fail(1, 3)))
    members = invited(5)
    with workers(job, 2) as executor:
        assert_same_outcomes(outcomes(executor, job, members), outcomes(Sequential(job), job, members))


def test_an_error_of_any_kind_in_a_method_is_reported_the_same_way() -> None:
    def misspelt(ctx: Context) -> None:
        if ctx.client == 2:
            ctx.no_such_thing  # type: ignore[attr-defined]  # noqa: B018

    job = small_job(Interrupted(happens=misspelt))
    members = invited(5)
    with workers(job, 2) as executor:
        together = outcomes(executor, job, members)
    odd = together[2].outcome
    assert isinstance(odd, Failed)
    assert "no_such_thing" in odd.reason
    assert_same_outcomes(together, outcomes(Sequential(job), job, members))


def test_a_broken_loss_is_reported_the_same_way() -> None:
    job = small_job(ExtraTerm(client=4, value=float("nan")))
    members = invited(5)
    with workers(job, 2) as executor:
        assert_same_outcomes(outcomes(executor, job, members), outcomes(Sequential(job), job, members))


@pytest.mark.parametrize("victim", [0, 2, 4])
def test_a_worker_killed_in_the_middle_of_a_phase_is_replaced_and_changes_nothing(victim: int, tmp_path: Path) -> None:
    reference = small_job(FedAvg())
    job = small_job(Interrupted(happens=kill_once(victim, tmp_path)))
    with workers(job, 2) as executor:
        survived = ran(job, executor)
    undisturbed = ran(reference, Sequential(reference))
    assert not differences(survived.server, undisturbed.server)
    assert quiet(survived.metrics) == quiet(undisturbed.metrics)
    assert [len(metrics["events"]) for metrics in survived.metrics] == [1, 0]
    event = Event.from_json(survived.metrics[0]["events"][0])
    assert isinstance(event, WorkerDied)
    assert event.cause == "signal 9"
    assert str(victim) in event.again
    assert "died" in str(event)


def test_two_clients_that_die_once_each_are_both_tried_again(tmp_path: Path) -> None:
    """Client 3 runs while client 2 waits behind it for its second try: only the one that ran is to blame."""
    reference = small_job(FedAvg())
    job = small_job(Interrupted(happens=kill_both_once(early=2, late=3, folder=tmp_path)))
    with workers(job, 2) as executor:
        survived = ran(job, executor, rounds=1)
    assert survived.metrics[0]["failed"] == []
    assert len(survived.metrics[0]["events"]) == 2
    assert not differences(survived.server, ran(reference, Sequential(reference), rounds=1).server)


def test_a_client_that_always_kills_its_worker_is_left_out_and_the_others_stand() -> None:
    reference = small_job(Interrupted(happens=fail(1)))
    job = small_job(Interrupted(happens=kill(1)))
    with workers(job, 2) as executor:
        survived = ran(job, executor)
    without = ran(reference, Sequential(reference))
    assert not differences(survived.server, without.server)
    for metrics in survived.metrics:
        assert [(failure["client"], failure["phase"]) for failure in metrics["failed"]] == [(1, "train")]
        assert "died" in metrics["failed"][0]["reason"]
        assert metrics["failed"][0]["cause"] == "worker"
        assert len(metrics["events"]) == 2


@dataclass(frozen=True)
class KillAWorker:
    """Ends one idle worker after the first round."""

    choose: Callable[[list[int]], int]

    def after_round(self, view: RoundView) -> None:
        if view.clock.first:
            victim = self.choose(sorted(children()))
            os.kill(victim, signal.SIGKILL)
            os.waitid(os.P_PID, victim, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("choose", [min, max])
def test_a_worker_killed_while_it_has_nothing_to_do_is_replaced(choose: Callable[[list[int]], int]) -> None:
    job = small_job("fedavg")
    with workers(job, 2) as executor:
        survived = ran(job, executor, observers=(KillAWorker(choose),))
    undisturbed = ran(job, Sequential(job))
    assert not differences(survived.server, undisturbed.server)
    assert quiet(survived.metrics) == quiet(undisturbed.metrics)
    assert any(event["kind"] == WorkerDied.kind for event in survived.metrics[1]["events"])


def test_closing_leaves_no_process_and_no_open_file(tmp_path: Path) -> None:
    before, files = children(), set(open_files())
    job = small_job(Interrupted(happens=kill_once(2, tmp_path)))
    with workers(job, 3) as executor:
        assert len(children() - before) == 3
        ran(job, executor)
        assert len(children() - before) == 3
    assert children() == before
    assert set(open_files()) == files


def test_closing_in_the_middle_of_a_phase_leaves_no_process() -> None:
    before = children()
    job = small_job("fedavg")
    with workers(job, 2) as executor:
        running = executor.run(briefing_of(job, Clock(0, 1, 1)), invited(5))
        next(running)
    assert children() == before


def test_as_many_workers_as_cores_unless_told_otherwise() -> None:
    before = children()
    with workers(small_job("fedavg"), 0):
        assert len(children() - before) == len(os.sched_getaffinity(0))


def test_a_slow_client_does_not_pile_the_others_up_in_memory(tmp_path: Path) -> None:
    """Whoever waits for the first client's turn: the executor asks for no more than it may keep."""

    home = os.getpid()

    @dataclass(frozen=True)
    class Slow(FedAvg):
        def begin(self, ctx: Context) -> Tree:
            while os.getpid() != home and ctx.client == 0 and not (tmp_path / "go").exists():
                time.sleep(0.01)
            return super().begin(ctx)

    job = job_of(Slow(), digits_federation(200, (4,) * 200), training={"epochs": 1, "batch": 4})
    asked = []

    def everybody() -> Iterator[Invited]:
        for client in range(200):
            asked.append(client)
            yield Invited(client, {})

    briefing = briefing_of(job, Clock(0, 1, 1))
    executor = Workers(job, options=Options(2, stack=1, layout="plain"))
    threading.Timer(1.5, (tmp_path / "go").touch).start()
    try:
        outcomes = executor.run(briefing, everybody())
        next(outcomes)
        assert len(asked) <= 2 * (8 + 2) + 2
        assert len(list(outcomes)) == 199
    finally:
        executor.close()
