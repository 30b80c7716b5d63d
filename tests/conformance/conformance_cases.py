"""Every registered method as the suite runs it: on eight clients with few digits of few classes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from engine.exact import differences, without_seconds
from fewfed import tree
from fewfed.data.federation import Federation, GeneratedFederation
from fewfed.engine.client_store import ClientStore
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.executor import Briefing, Executor, Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.holdings import Holdings
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.engine.outcomes import Done, Outcome
from fewfed.engine.packet import Packet, decode, encode
from fewfed.errors import ConfigError
from fewfed.method import Method
from fewfed.methods.registry import choose, presets_of, registered, wrapped_field
from fewfed.plan import Plan
from fewfed.tasks.classification import Classification
from fewfed.training import Training
from fewfed.tree import Tree
from support import digits_federation, digits_network, states

SIZES = (14, 9, 20, 6, 12, 17, 8, 11)
ROUNDS = 3
COHORT = 4
TEST_ROWS = 120
TRAINING: Mapping[str, Any] = {"epochs": 2, "batch": 8, "lr": 0.003}

EARLY: Mapping[str, Mapping[str, Any]] = {
    "ccvr": {"epochs": 4},
    "ccvr:gaussian": {"epochs": 4, "samples": 100},
    "fedgen": {"start": 1, "steps": 10, "batch": 32},
    "fedgen-latent": {"steps": 10, "batch": 32},
    "flair": {"init_epochs": 2},
}
"""Settings that let a method show all its phases in a run as short as these, and do often only a few times."""


def every_spec() -> list[str]:
    """Each method as a user would write it, with each of its presets; wrappers also around another method."""
    found = []
    for name, cls in registered().items():
        found += [name if preset == "paper" else f"{name}:{preset}" for preset in presets_of(name)]
        if wrapped_field(cls) and _fits(f"{name}(fedprox)"):
            found.append(f"{name}(fedprox)")
    return found


def every_method() -> list[str]:
    """The same without presets that only change numbers."""
    numbers = {f"{name}:{preset}" for name, cls in registered().items() for preset in cls.presets}
    return [spec for spec in every_spec() if spec not in numbers]


def numbers_apart() -> list[Any]:
    """Each spec as a parameter of a test; presets that only change numbers are for thorough runs."""
    methods = every_method()
    return [spec if spec in methods else pytest.param(spec, marks=pytest.mark.thorough) for spec in every_spec()]


def _fits(spec: str) -> bool:
    """Whether a wrapper accepts what it is put around; some only take methods that share features."""
    try:
        job = job_for(spec)
        job.method.check(job.setup)
    except ConfigError:
        return False
    return True


def federation() -> Federation:
    whole = digits_federation(len(SIZES), SIZES)
    # Personal methods are scored once a client and round: a short test part keeps that cheap.
    return GeneratedFederation(len(SIZES), whole.examples, whole.test.rows(torch.arange(TEST_ROWS)), whole.classes)


def training_for(spec: str) -> Training:
    return Training(**{**TRAINING, **choose(spec).training})


def job_for(spec: str, values: Mapping[str, Any] | None = None, clients: Federation | None = None) -> Job:
    """The method on digits, with its preset's training."""
    return job_of(choose(spec, EARLY.get(spec) if values is None else values).method, training_for(spec), clients)


def job_of(method: Method, training: Training, clients: Federation | None = None) -> Job:
    plan = Plan(0, training.batch, training.batch_rule, training.sampling)
    return Job(method, digits_network(), Classification(10), clients or federation(), training, plan)


@dataclass(frozen=True)
class Moment:
    """What is known after a round."""

    server: Tree
    states: dict[int, Tree]

    def differences(self, other: Moment) -> list[str]:
        found = [f"server: {text}" for text in differences(self.server, other.server)]
        if self.states.keys() != other.states.keys():
            found.append(f"states of {sorted(self.states)} are not states of {sorted(other.states)}")
        for client in self.states.keys() & other.states.keys():
            found += [f"client {client}: {text}" for text in differences(self.states[client], other.states[client])]
        return found


@dataclass
class Moments:
    """The observer that keeps them, and every round's metrics without the time it took."""

    after: list[Moment] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)

    def after_round(self, view: RoundView) -> None:
        found = states(view.executor, len(view.job.federation))
        self.after.append(Moment(tree.clone(view.server), found))
        self.metrics.append(without_seconds(view.metrics))


@dataclass(frozen=True)
class Played:
    """A finished run."""

    job: Job
    moments: Moments

    @property
    def last(self) -> Moment:
        return self.moments.after[-1]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return self.moments.metrics


def play(
    job: Job,
    executor: Executor | None = None,
    *,
    rounds: int = ROUNDS,
    cohort: int = COHORT,
    homes: SimulatedHomes | None = None,
    holdings: Holdings | None = None,
    server: Tree | None = None,
    start: int = 0,
    stop: int | None = None,
    evaluate_every: int = 1,
) -> Played:
    """Run rounds [start, rounds); with `stop`, only those before it, as if the run were interrupted there."""
    moments = Moments()
    observers = [Evaluate(evaluate_every, clients=0), moments, _Interruption(stop)]
    with contextlib.suppress(_InterruptedRun):
        run_rounds(
            job,
            executor or Sequential(job, homes),
            observers,
            rounds=rounds,
            cohort=cohort,
            holdings=holdings,
            server=server,
            start=start,
        )
    return Played(job, moments)


class _InterruptedRun(Exception):
    """Not an error: the run was to end here."""


@dataclass(frozen=True)
class _Interruption:
    before: int | None

    def after_round(self, view: RoundView) -> None:
        if self.before is not None and view.clock.round + 1 >= self.before:
            raise _InterruptedRun


def homes_with(job: Job, moment: Moment) -> SimulatedHomes:
    store = ClientStore()
    for client, state in moment.states.items():
        store.put(client, state)
    return SimulatedHomes(job, store)


class Guarded(Sequential):
    """Runs a method and notes where it breaks the agreement between methods and engines."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.changed_inputs: list[str] = []
        self.odd_packets: list[str] = []
        self.guessed_shapes: list[str] = []

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        if briefing.schema.leaves is None:
            self.guessed_shapes.append(briefing.phase.name)
        for invited in members:
            given: Tree = {
                "shared": briefing.shared,
                "personal": invited.personal,
                "state": self.homes.state(invited.client),
            }
            before = tree.clone(given)
            (outcome,) = super().run(briefing, [invited])
            where = f"round {briefing.clock.round + 1}, phase '{briefing.phase.name}', client {invited.client}"
            self.changed_inputs += [f"{where}: {text}" for text in differences(before, given)]
            asked = [path for path, leaf in tree.leaves(given) if leaf.requires_grad]
            self.changed_inputs += [f"{where}: {path} was made trainable" for path in asked]
            if isinstance(outcome, Done):
                self._look_at(outcome.packet, where)
            yield outcome

    def _look_at(self, packet: Packet, where: str) -> None:
        loose = [path for path, leaf in tree.leaves(packet.arrays) if leaf.requires_grad]
        self.odd_packets += [f"{where}: {path} still has a gradient history" for path in loose]
        again = decode(encode(packet))
        self.odd_packets += [
            f"{where}: {text} after it was written" for text in differences(again.arrays, packet.arrays)
        ]
        if dataclasses.replace(again, arrays={}) != dataclasses.replace(packet, arrays={}):
            self.odd_packets.append(f"{where}: {again} is not {packet}")


@dataclass(frozen=True)
class Reference:
    """A method as a user writes it, its run in one process, and what was noticed on the way."""

    spec: str
    played: Played
    guard: Guarded
