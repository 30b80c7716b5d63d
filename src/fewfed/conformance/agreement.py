"""One definition of a method, whoever computes it: executors, orders and interruptions leave the bits as they are."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from fewfed import tree
from fewfed.conformance.clients import SIZES, with_other_rows
from fewfed.conformance.differences import differences
from fewfed.conformance.double import EXACT, gap, in_double
from fewfed.conformance.playing import COHORT, ROUNDS, Played, homes_with, play
from fewfed.conformance.property import differing, refuse
from fewfed.conformance.reference import TRAINING, Reference, Subject, job_of
from fewfed.engine import storage
from fewfed.engine.client_store import ClientStore
from fewfed.engine.events import Event
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Mode
from fewfed.engine.executors.cuda.options import Options as DeviceOptions
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options as WorkerOptions
from fewfed.engine.holdings import Holdings
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import PSEUDO_CLIENT, Job, members_of
from fewfed.methods.registry import choose
from fewfed.phase import Clock, Cohort
from fewfed.plan import Plan
from fewfed.training import Training
from fewfed.tree import Tree

_TWO = WorkerOptions(processes=2, stack=1, layout="plain")


def workers_agree(reference: Reference) -> str:
    """Worker processes compute what one process computes, bit for bit."""
    executor = Workers(reference.job, options=_TWO)
    try:
        together = play(reference.job, executor)
    finally:
        executor.close()
    refuse(_apart(together, reference.played), "worker processes compute the same bits as one process")
    return ""


@dataclasses.dataclass(frozen=True)
class _Backwards(Plan):
    """The same clients in the opposite order."""

    def cohort(self, round: int, clients: int, size: int) -> list[int]:
        return super().cohort(round, clients, size)[::-1]


def order_does_not_matter(reference: Reference) -> str:
    plan = reference.job.plan
    backwards = _Backwards(plan.seed, plan.batch, plan.rule, plan.sampling)
    other = play(dataclasses.replace(reference.job, plan=backwards))
    refuse(_apart(other, reference.played), "the order in which clients were drawn does not matter")
    return ""


def absent_rows_do_not_matter(reference: Reference) -> str:
    job, before = reference.job, reference.played.moments.after[0]
    absent = set(range(len(SIZES))) - _members(job, round=1)
    other = dataclasses.replace(job, federation=with_other_rows(job.federation, absent))
    again = play(other, server=before.server, homes=homes_with(other, before), start=1, stop=2)
    found = again.last.differences(reference.played.moments.after[1])
    refuse(found, "rows of clients that do not take part in a round do not matter")
    return ""


def _members(job: Job, round: int) -> set[int]:
    """Clients whose rows some phase of a round may look at."""
    drawn = job.plan.cohort(round, len(job.federation), COHORT)
    found: set[int] = set()
    for phase in job.method.phases(Clock(round, ROUNDS, job.training.epochs)):
        numbers = set(members_of(phase, drawn, len(job.federation)))
        found |= set(range(len(job.federation))) if phase.cohort is Cohort.UNION else numbers - {PSEUDO_CLIENT}
    return found


def survives_the_disk(reference: Reference) -> str:
    """Server and states are written and read again as they were, their entries in the same order."""
    last = reference.played.last
    kept = {"server": last.server, **{f"client{client}": state for client, state in last.states.items()}}
    with tempfile.TemporaryDirectory() as folder:
        refuse(_changed_by_disk(kept, Path(folder)), "server and states survive the disk")
    return ""


def _changed_by_disk(kept: Mapping[str, Tree], folder: Path) -> Iterator[str]:
    for name, content in kept.items():
        path = folder / f"{name}.safetensors"
        storage.save(path, content)
        loaded, _ = storage.load(path)
        yield from (f"{name}: {text}" for text in differences(loaded, content))
        if [leaf for leaf, _ in tree.leaves(loaded)] != [leaf for leaf, _ in tree.leaves(content)]:
            yield f"{name}: its entries come in another order"


def resumes(reference: Reference) -> str:
    """A run interrupted after two rounds and continued ends where the uninterrupted one does."""
    job = reference.job
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        homes = SimulatedHomes(job, ClientStore(folder / "states", memory_bytes=1))
        held = Holdings()
        stopped = play(job, homes=homes, holdings=held, stop=2)
        storage.save(folder / "server.safetensors", stopped.last.server)
        committed = homes.commit()
        homes.settle()

        server, _ = storage.load(folder / "server.safetensors")
        restored = SimulatedHomes(job, ClientStore(folder / "states", memory_bytes=1))
        restored.restore(committed)
        continued = play(job, server=server, homes=restored, holdings=Holdings.from_json(held.as_json()), start=2)
    found = continued.last.differences(reference.played.last)
    found += differing(stopped.metrics + continued.metrics, reference.played.metrics)
    refuse(found, "a run interrupted after two rounds continues as if nothing had happened")
    return ""


def recorded_steps_agree(subject: Subject) -> str:
    """Steps as a GPU replays them, one client at a time, in double precision."""
    return _device_agrees(subject, "graphs")


def stacked_steps_agree(subject: Subject) -> str:
    """Steps of several clients side by side, in double precision."""
    return _device_agrees(subject, "stacked")


def _device_agrees(subject: Subject, mode: Mode) -> str:
    """Round by round, each from where the reference stands: what one round magnifies, the next would magnify again."""
    training = {**TRAINING, "optimizer": "sgd", "lr": 0.02, **choose(subject.spec).training}
    job = in_double(job_of(subject.method, Training(**training)))
    expected = play(job, rounds=2, evaluate_every=2)
    options = DeviceOptions(device="cpu", mode=mode, stack=4, streams=1)
    for round in range(2):
        before = expected.moments.after[round - 1] if round else None
        homes = homes_with(job, before) if before else None
        server = tree.clone(before.server) if before else None
        device = Device(job, homes, options)
        found = play(job, device, rounds=2, server=server, start=round, stop=round + 1, evaluate_every=2)
        events = [str(Event.from_json(event)) for metrics in found.metrics for event in metrics["events"]]
        if events:
            return events[0]
        wanted = expected.moments.after[round]
        apart = {"server": gap(found.last.server, wanted.server)}
        apart |= {f"client {client}": gap(found.last.states.get(client, {}), state)
                  for client, state in wanted.states.items()}  # fmt: skip
        problems = [f"round {round + 1}: {who} is {by:.1e} off" for who, by in apart.items() if not by < EXACT]
        refuse(problems, f"a GPU's {mode} steps compute the same in double precision")
    return ""


def _apart(found: Played, expected: Played) -> list[str]:
    return found.last.differences(expected.last) + differing(found.metrics, expected.metrics)
