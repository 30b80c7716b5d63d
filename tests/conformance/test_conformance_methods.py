"""What every method promises, whatever it does inside. See README.md in this folder."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch
from conformance_cases import (
    COHORT,
    ROUNDS,
    SIZES,
    TEST_ROWS,
    TRAINING,
    Reference,
    every_method,
    homes_with,
    job_for,
    job_of,
    play,
)

from engine.exact import differences
from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.data.federation import Federation, GeneratedFederation
from fewfed.engine import storage
from fewfed.engine.client_store import ClientStore
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.holdings import Holdings
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import PSEUDO_CLIENT, Job, members_of
from fewfed.phase import Clock, Cohort
from fewfed.plan import Plan
from fewfed.training import Training
from fewfed.tree import Tree
from support import digits, digits_federation

pytestmark = pytest.mark.timeout(120)

TWO = Options(processes=2, stack=1, layout="plain")


def test_nobody_fails_on_ordinary_clients(reference: Reference) -> None:
    assert [metrics["failed"] for metrics in reference.played.metrics] == [[]] * ROUNDS


def test_worker_processes_compute_the_same_bits(reference: Reference) -> None:
    job = reference.played.job
    executor = Workers(job, options=TWO)
    try:
        together = play(job, executor)
    finally:
        executor.close()
    assert together.last.differences(reference.played.last) == []
    assert together.metrics == reference.played.metrics


@dataclasses.dataclass(frozen=True)
class Backwards(Plan):
    """The same clients in the opposite order."""

    def cohort(self, round: int, clients: int, size: int) -> list[int]:
        return super().cohort(round, clients, size)[::-1]


def test_the_order_in_which_clients_were_drawn_does_not_matter(reference: Reference) -> None:
    plan = reference.played.job.plan
    backwards = Backwards(plan.seed, plan.batch, plan.rule, plan.sampling)
    other = play(dataclasses.replace(reference.played.job, plan=backwards))
    assert other.last.differences(reference.played.last) == []
    assert other.metrics == reference.played.metrics


def test_rows_of_clients_that_do_not_take_part_do_not_matter(reference: Reference) -> None:
    job, before = reference.played.job, reference.played.moments.after[0]
    absent = set(range(len(SIZES))) - members(job, round=1)
    other = dataclasses.replace(job, federation=with_other_rows(job.federation, absent))
    again = play(other, server=before.server, homes=homes_with(other, before), start=1, stop=2)
    assert again.last.differences(reference.played.moments.after[1]) == []


def members(job: Job, round: int) -> set[int]:
    """Clients whose rows some phase of a round may look at."""
    drawn = job.plan.cohort(round, len(job.federation), COHORT)
    clock = Clock(round, ROUNDS, job.training.epochs)
    found: set[int] = set()
    for phase in job.method.phases(clock):
        numbers = set(members_of(phase, drawn, len(job.federation)))
        found |= set(range(len(job.federation))) if phase.cohort is Cohort.UNION else numbers - {PSEUDO_CLIENT}
    return found


def with_other_rows(original: Federation, clients: set[int]) -> Federation:
    train, _ = digits()

    def make(client: int) -> Examples:
        return train.rows(torch.arange(700 + client, 760 + client)) if client in clients else original.examples(client)

    return GeneratedFederation(len(original), make, original.test, original.classes)


def test_what_a_client_is_given_is_not_changed(reference: Reference) -> None:
    assert reference.guard.changed_inputs == []


def test_packets_survive_being_written_and_read(reference: Reference) -> None:
    assert reference.guard.odd_packets == []


def test_what_a_phase_uploads_is_known_before_anybody_has_sent_it(reference: Reference) -> None:
    assert reference.guard.guessed_shapes == []


def test_server_and_states_survive_the_disk(reference: Reference, tmp_path: Path) -> None:
    for name, kept in {"server": reference.played.last.server, **_named(reference.played.last.states)}.items():
        path = tmp_path / f"{name}.safetensors"
        storage.save(path, kept)
        loaded, _ = storage.load(path)
        assert differences(loaded, kept) == []
        assert [path for path, _ in tree.leaves(loaded)] == [path for path, _ in tree.leaves(kept)]


def _named(states: dict[int, Tree]) -> dict[str, Tree]:
    return {f"client{client}": state for client, state in states.items()}


def test_a_run_interrupted_after_two_rounds_continues_as_if_nothing_had_happened(
    reference: Reference, tmp_path: Path
) -> None:
    job = reference.played.job
    homes = SimulatedHomes(job, ClientStore(tmp_path / "states", memory_bytes=1))
    held = Holdings()
    stopped = play(job, homes=homes, holdings=held, stop=2)
    storage.save(tmp_path / "server.safetensors", stopped.last.server)
    committed = homes.commit()
    homes.settle()

    server, _ = storage.load(tmp_path / "server.safetensors")
    restored = SimulatedHomes(job, ClientStore(tmp_path / "states", memory_bytes=1))
    restored.restore(committed)
    continued = play(job, server=server, homes=restored, holdings=Holdings.from_json(held.as_json()), start=2)
    assert continued.last.differences(reference.played.last) == []
    assert stopped.metrics + continued.metrics == reference.played.metrics


def test_a_client_takes_as_many_steps_as_under_fedavg_unless_the_method_says_why(reference: Reference) -> None:
    job = reference.played.job
    if job.method.steps_differ:
        assert " " in job.method.steps_differ, "expected a reason in words"
        return
    for round, metrics in enumerate(reference.played.metrics):
        phases = job.method.phases(Clock(round, ROUNDS, job.training.epochs))
        by_clients = sum(metrics["phases"][p.name]["steps"] for p in phases if p.cohort is not Cohort.SERVER)
        cohort = job.plan.cohort(round, len(SIZES), COHORT)
        assert by_clients == sum(job.plan.steps(SIZES[client], job.training.epochs) for client in cohort)


def test_clients_with_one_sample_or_one_class_finish_or_are_reported(reference: Reference) -> None:
    job = dataclasses.replace(reference.played.job, federation=odd_clients())
    played = play(job, rounds=2, cohort=5)
    for metrics in played.metrics:
        assert {failure["client"] for failure in metrics["failed"]} <= {0, 1}
        assert all(failure["reason"] for failure in metrics["failed"])
        assert math.isfinite(metrics["loss"])
    assert [path for path, leaf in tree.leaves(played.last.server) if not torch.isfinite(leaf).all()] == []


def odd_clients() -> Federation:
    """Client 0 has one sample, client 1 nine of one class, the others are ordinary."""
    train, test = digits()
    ordinary = digits_federation(5, [1, 9, 12, 11, 10])
    sevens = (train.y == 7).nonzero().flatten()

    def make(client: int) -> Examples:
        return train.rows(sevens[:9]) if client == 1 else ordinary.examples(client)

    return GeneratedFederation(5, make, test.rows(torch.arange(TEST_ROWS)), classes=10)


@pytest.mark.parametrize("spec", every_method())
def test_the_model_becomes_better_than_the_one_it_started_from(spec: str) -> None:
    """With the method's own training, not a preset's: its learning rate may be made for hundreds of rounds."""
    method = job_for(spec).method
    job = job_of(method, Training(**{**TRAINING, **method.own_training}))
    fresh = method.predictor(method.server_init(job.setup), method.client_init(job.setup))
    start = Sequential(job).evaluate([fresh])[0]
    end = play(job, rounds=6, cohort=len(SIZES), evaluate_every=6).metrics[-1]
    if method.personal_model:
        matched = [start.matched(job.federation.counts(client)) for client in range(len(SIZES))]
        assert end["accuracy_matched"] > sum(matched) / len(matched) + 0.1
    else:
        assert end["accuracy"] > start.accuracy + 0.1


def test_a_method_says_what_it_is(reference: Reference) -> None:
    method = reference.played.job.method
    assert method.family
    assert method.paper
    assert type(method).__doc__
    assert method.name in reference.spec
    assert method.label
