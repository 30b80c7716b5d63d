"""Nothing a client hands over ends a run: every kind of bad packet is refused, in every executor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from engine.bad_packets import KINDS
from fewfed.conformance.differences import differences
from fewfed.data.federation import GeneratedFederation
from fewfed.engine import turn
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.executor import Executor
from fewfed.engine.executors.cuda import executor as device
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options as WorkerOptions
from fewfed.engine.job import Job
from fewfed.engine.outcomes import Finished
from fewfed.engine.packet import decode, encode
from fewfed.errors import RunError
from fewfed.method import Context, Report
from fewfed.tree import Tree
from support import Recorder, digits_federation, job_of, run

ROWS = 6
HONEST = 6

EXECUTORS: dict[str, Callable[[Job], Executor]] = {
    "sequential": Sequential,
    "workers": lambda job: Workers(job, options=WorkerOptions(2, 1, "plain")),
    "stacked workers": lambda job: Workers(job, options=WorkerOptions(2, 4, "plain")),
    "device, step by step": lambda job: Device(job, options=Options("eager", device="cpu")),
    "device, stacked": lambda job: Device(job, options=Options("stacked", stack=4, device="cpu")),
}

Change = Callable[[Any, Context], Any]
"""What becomes of a report before its packet is made, or of what the client then hands over."""


def job(clients: int, method: str = "flea") -> Job:
    whole = digits_federation(clients, ROWS)
    federation = GeneratedFederation(clients, whole.examples, whole.test, whole.classes, most_rows=ROWS)
    return job_of(method, federation, training={"epochs": 1})


@contextmanager
def altered(report: Change | None = None, finished: Change | None = None) -> Iterator[None]:
    """Clients report, or hand over, something else, in every executor: workers are forked and do so too."""
    honest = turn.finished

    def dishonest(job: Job, told: Any, ctx: Context, book: Tree, steps: int, terms: Any) -> Finished:
        found = honest(job, report(told, ctx) if report else told, ctx, book, steps, terms)
        return finished(found, ctx) if finished else found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(turn, "finished", dishonest)
        patched.setattr(device, "finished", dishonest)
        yield


def played(executor: str, clients: int, rounds: int = 2) -> Recorder:
    """Everybody takes part in every round."""
    training = job(clients)
    with closing(EXECUTORS[executor](training)) as runs:
        return run(training, rounds=rounds, cohort=clients, observers=[Evaluate()], executor=runs)


@dataclass(frozen=True)
class Attack:
    """A run in which every client but the last few hands over something bad, each another kind of it."""

    phases: tuple[str, ...]
    """The phase in which each of them does."""
    report: Change | None = None
    finished: Change | None = None

    @property
    def clients(self) -> int:
        return len(self.phases) + HONEST

    def is_due(self, ctx: Context) -> bool:
        return ctx.client < len(self.phases) and ctx.phase.name == self.phases[ctx.client]

    def played(self, executor: str) -> Recorder:
        with altered(self.report, self.finished):
            return played(executor, self.clients)

    def without_them(self, executor: str) -> Recorder:
        """The same run, but they break down by themselves before they hand over anything."""

        def breaks_down(told: Any, ctx: Context) -> Any:
            if self.is_due(ctx):
                raise turn.CannotTrain("it broke down")
            return told

        with altered(breaks_down):
            return played(executor, self.clients)


def spoil(found: Finished, ctx: Context) -> Finished:
    if not PACKETS.is_due(ctx):
        return found
    return dataclasses.replace(found, packet=KINDS[ctx.client].spoil(found.packet))


def travel(found: Finished, ctx: Context) -> Finished:
    return dataclasses.replace(found, packet=decode(encode(spoil(found, ctx).packet)))


PACKETS = Attack(tuple(kind.phase for kind in KINDS), finished=spoil)
TRAVELLING = Attack(PACKETS.phases, finished=travel)

REPORTS: dict[str, Callable[[Report], Any]] = {
    "no report": lambda report: None,
    "an upload that is a list": lambda report: report._replace(upload=[1.0]),  # type: ignore[arg-type]
    "a Python number in the upload": lambda report: report._replace(upload={"model": 3.0}),
    "an array of complex numbers": lambda report: report._replace(upload={"model": _head(report).cfloat()}),
    "a sparse array": lambda report: report._replace(upload={"model": _head(report).to_sparse()}),
    "an array without memory": lambda report: report._replace(upload={"model": _head(report).to("meta")}),
    "a name with a slash": lambda report: report._replace(upload={"a/b": {}}),
    "a name that is no text": lambda report: report._replace(upload={3: {}}),
    "weight as text": lambda report: report._replace(weight="1"),  # type: ignore[arg-type]
    "weight as yes or no": lambda report: report._replace(weight=True),
    "metrics as a list": lambda report: report._replace(metrics=[1.0]),  # type: ignore[arg-type]
    "a metric as text": lambda report: report._replace(metrics={"noise": "much"}),  # type: ignore[dict-item]
    "a metric with the engine's name": lambda report: report._replace(metrics={"steps": 1.0}),
    "state that nobody declared": lambda report: report._replace(state={"a": _head(report)}),
}


def _head(report: Report) -> torch.Tensor:
    found: torch.Tensor = report.upload["model"]["params"]["head.weight"]
    return found


def misreport(told: Report, ctx: Context) -> Any:
    return list(REPORTS.values())[ctx.client](told) if MISREPORTS.is_due(ctx) else told


MISREPORTS = Attack(("train",) * len(REPORTS), report=misreport)


@cache
def under_attack(executor: str, attack: Attack) -> Recorder:
    """Played once for all tests of it."""
    return attack.played(executor)


def failures_of(client: int, found: Recorder) -> list[dict[str, Any]]:
    return [failure for metrics in found.metrics for failure in metrics["failed"] if failure["client"] == client]


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("client", range(len(KINDS)), ids=lambda client: KINDS[client].name)
def test_a_bad_packet_is_refused_with_its_reason(client: int, executor: str) -> None:
    failures = failures_of(client, under_attack(executor, PACKETS))
    assert len(failures) == 2  # Once a round.
    for failure in failures:
        assert (failure["phase"], failure["cause"]) == (KINDS[client].phase, "packet")
        assert failure["reason"].startswith("its packet was refused: ")
        assert KINDS[client].reason in failure["reason"]


@pytest.mark.parametrize("client", range(len(KINDS)), ids=lambda client: KINDS[client].name)
def test_a_bad_packet_is_refused_after_it_has_travelled_as_bytes(client: int) -> None:
    failures = failures_of(client, under_attack("sequential", TRAVELLING))
    assert len(failures) == 2
    assert all(KINDS[client].reason in failure["reason"] for failure in failures)


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("client", range(len(REPORTS)), ids=lambda client: list(REPORTS)[client])
def test_a_report_that_is_none_is_refused(client: int, executor: str) -> None:
    failures = failures_of(client, under_attack(executor, MISREPORTS))
    assert [failure["cause"] for failure in failures] == ["packet"] * 2


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("attack", [PACKETS, MISREPORTS], ids=["packets", "reports"])
def test_the_run_ends_as_without_the_clients_that_sent_them(attack: Attack, executor: str) -> None:
    found, expected = under_attack(executor, attack), attack.without_them(executor)
    for metrics, reference in zip(found.metrics, expected.metrics, strict=True):
        assert [failure["client"] for failure in metrics["failed"]] != []
        for same in ("accuracy", "loss", "steps", "phases"):
            assert metrics[same] == reference[same]
        assert metrics["bytes"]["up"] == reference["bytes"]["up"]
    assert differences(found.server, expected.server) == []


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_round_of_one_client_whose_packet_is_refused_changes_nothing(executor: str) -> None:
    training = job(5, "fedavg")
    drawn = [training.plan.cohort(number, 5, 1)[0] for number in range(6)]
    bad = {number for number, client in enumerate(drawn) if client == drawn[0]}
    assert 0 < len(bad) < 6

    def change(found: Finished, ctx: Context) -> Finished:
        return worsened(found, "NaN") if ctx.client == drawn[0] else found

    with altered(finished=change), closing(EXECUTORS[executor](training)) as runs:
        found = run(training, rounds=6, cohort=1, observers=[Evaluate()], executor=runs)
    before = training.method.server_init(training.setup)
    for number, view in enumerate(found.views):
        assert len(view.metrics["failed"]) == (number in bad)
        assert bool(differences(view.server, before)) == (number not in bad)
        before = view.server


def test_packets_that_are_all_refused_from_the_start_end_the_run_with_the_reason() -> None:
    with (
        altered(finished=lambda found, ctx: worsened(found, "another type")),
        pytest.raises(RunError, match=r"all 3 members failed; the first, client .*expected torch\.float32"),
    ):
        run(job(5, "fedavg"), rounds=2, cohort=3)


def test_a_phase_that_never_brings_anything_ends_the_run_at_last() -> None:
    with (
        altered(finished=lambda found, ctx: worsened(found, "another type")),
        pytest.raises(RunError, match="round 3, phase 'train': all 1 members failed"),
    ):
        run(job(5, "fedavg"), rounds=3, cohort=1)


def test_what_later_phases_stand_on_is_named_where_it_never_came() -> None:
    def change(found: Finished, ctx: Context) -> Finished:
        return worsened(found, "features with infinity") if ctx.phase.name == "share" else found

    with altered(finished=change), pytest.raises(RunError, match=r"phase 'share'.*holds NaN or infinity"):
        run(job(1), rounds=3, cohort=1)


def worsened(found: Finished, name: str) -> Finished:
    (kind,) = (kind for kind in KINDS if kind.name == name)
    return dataclasses.replace(found, packet=kind.spoil(found.packet))
