"""Short runs in memory, with everything that is known after each round."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from fewfed import tree
from fewfed.conformance.clients import SIZES
from fewfed.conformance.differences import differences, without_seconds
from fewfed.engine.client_store import ClientStore
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.executor import Executor
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.holdings import Holdings
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.loop import Observer, RoundView, run_rounds
from fewfed.tree import Tree

ROUNDS = 3
COHORT = len(SIZES) // 2


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
    observers: list[Observer] = [Evaluate(evaluate_every, clients=0), moments, _Interruption(stop)]
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
    """Homes whose clients remember what they did at a moment."""
    store = ClientStore()
    for client, state in moment.states.items():
        store.put(client, state)
    return SimulatedHomes(job, store)


def states(executor: Executor | SimulatedHomes, clients: int) -> dict[int, Tree]:
    """What every client that took part remembers, its optimiser's moments too."""
    homes: Any = executor if isinstance(executor, SimulatedHomes) else executor.homes
    found = {client: homes.kept(client) for client in range(clients)}
    return {client: tree.clone(state) for client, state in found.items() if state is not None}
