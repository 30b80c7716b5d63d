"""The round loop: the only one. It knows phases and combinations, no method and no executor by name."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fewfed import tree
from fewfed.engine.combine import Combiner
from fewfed.engine.holdings import Holdings
from fewfed.engine.job import PSEUDO_CLIENT, Block, Done, Executor, Failed, Job, Member, members_of
from fewfed.engine.store import ClientStore
from fewfed.errors import RunError
from fewfed.method import Combined
from fewfed.phase import Clock, Cohort, Phase
from fewfed.tree import Tree


@dataclass(frozen=True)
class PhaseResult:
    """One phase of one round, as observers see it: exactly what crossed between server and clients."""

    phase: Phase
    shared: Tree
    combined: Combined
    bytes_up: int
    bytes_down: int
    bytes_down_every_time: int
    """As if what clients already hold were sent to them again."""
    bytes_relayed: int
    """Part of what went up that the server only hands on to another client."""
    rows: dict[str, int]
    steps: int
    terms: dict[str, float]
    failed: tuple[Failed, ...]


@dataclass
class RoundView:
    """A finished round. Observers read it and add to `metrics`."""

    job: Job
    clock: Clock
    cohort: Sequence[int]
    server: Tree
    store: ClientStore
    holdings: Holdings
    executor: Executor
    phases: list[PhaseResult]
    metrics: dict[str, Any] = field(default_factory=dict)


class Observer(Protocol):
    """Looks at finished rounds: evaluates, counts, writes, shows."""

    def after_round(self, view: RoundView) -> None:
        """Called once a round, observers in their order."""


def run_rounds(
    job: Job,
    executor: Executor,
    observers: Sequence[Observer],
    *,
    rounds: int,
    cohort: int,
    store: ClientStore,
    holdings: Holdings | None = None,
    server: Tree | None = None,
    start: int = 0,
) -> Tree:
    """Run rounds [start, rounds) and return the server's tree.

    `server` and `holdings` are given when a run is taken up again.
    """
    method = job.method
    holdings = Holdings() if holdings is None else holdings
    job.check()
    state = executor.place(method.server_init(job.setup) if server is None else server)
    for number in range(start, rounds):
        began = time.perf_counter()
        clock = Clock(number, rounds, job.training.epochs)
        drawn = job.plan.cohort(number, len(job.federation), cohort)
        results: list[PhaseResult] = []
        for phase in method.phases(clock):
            result = _run_phase(job, executor, phase, clock, drawn, state, store, holdings)
            state = method.absorb(state, phase, result.combined)
            results.append(result)
        view = RoundView(job, clock, drawn, state, store, holdings, executor, results)
        view.metrics = _metrics(view, time.perf_counter() - began)
        for observer in observers:
            observer.after_round(view)
    return state


def _run_phase(
    job: Job,
    executor: Executor,
    phase: Phase,
    clock: Clock,
    drawn: Sequence[int],
    server: Tree,
    store: ClientStore,
    holdings: Holdings,
) -> PhaseResult:
    method = job.method
    shared = method.broadcast(server, phase)
    numbers = members_of(phase, drawn, len(job.federation))
    inside = phase.cohort in (Cohort.SERVER, Cohort.UNION)
    whole = tree.nbytes(shared)
    down = every_time = 0
    if not inside:
        holdings.announce(shared)

    def members() -> Iterator[Member]:
        nonlocal down, every_time
        for client in numbers:
            personal = method.personal(server, phase, client)
            if not inside:
                own = tree.nbytes(personal)
                down += holdings.deliver(client) + own
                every_time += whole + own
            yield Member(client, personal, _remembered(job, phase, store, client))

    combiner = Combiner(phase)
    failed: list[Failed] = []
    steps = relayed = 0
    sums: dict[str, float] = {}
    for outcome in executor.run(phase, clock, shared, members()):
        if isinstance(outcome, Failed):
            failed.append(outcome)
            continue
        if isinstance(outcome, Block):
            combiner.add_block(outcome.done)
        else:
            combiner.add(outcome.client, outcome.upload, outcome.weight)
        for done in outcome.done if isinstance(outcome, Block) else (outcome,):
            _remember(phase, store, done)
            relayed += tree.nbytes({name: done.upload[name] for name in phase.relayed})
            steps += done.steps
            for name, value in done.terms.items():
                sums[name] = sums.get(name, 0.0) + value * done.steps
    if len(failed) == len(numbers):
        first = failed[0]
        raise RunError(
            f"round {clock.round + 1}, phase '{phase.name}': all {len(numbers)} members failed; "
            f"the first, client {first.client}: {first.reason}"
        )
    return PhaseResult(
        phase=phase,
        shared=shared,
        combined=combiner.finish(),
        bytes_up=0 if inside else combiner.bytes,
        bytes_down=down,
        bytes_down_every_time=every_time,
        bytes_relayed=relayed,
        rows=combiner.rows(),
        steps=steps,
        terms={name: value / steps for name, value in sums.items()},
        failed=tuple(failed),
    )


def _remembered(job: Job, phase: Phase, store: ClientStore, client: int) -> Tree:
    if client == PSEUDO_CLIENT:
        return {}
    state = store.get(client)
    return job.method.client_init(job.setup) if state is None else state


def _remember(phase: Phase, store: ClientStore, outcome: Done) -> None:
    if phase.keeps_state:
        store.put(outcome.client, outcome.state)
    elif outcome.state:
        raise RunError(f"phase '{phase.name}' returned client state without declaring keeps_state")


def _metrics(view: RoundView, seconds: float) -> dict[str, Any]:
    phases = {
        result.phase.name: {
            "bytes_up": result.bytes_up,
            "bytes_down": result.bytes_down,
            "bytes_down_if_sent_every_time": result.bytes_down_every_time,
            "clients": len(result.combined.clients),
            "steps": result.steps,
            **({"rows": result.rows} if result.rows else {}),
            **({"terms": result.terms} if result.terms else {}),
        }
        for result in view.phases
    }
    return {
        "round": view.clock.round + 1,
        "lr": view.job.training.lr_at(view.clock.round),
        "bytes": _traffic(view.phases),
        "steps": sum(r.steps for r in view.phases),
        "phases": phases,
        "failed": [dataclasses.asdict(failure) for r in view.phases for failure in r.failed],
        "events": view.executor.events(),
        "train_seconds": seconds,
    }


def _traffic(phases: Sequence[PhaseResult]) -> dict[str, Any]:
    """Bytes through the server as they were sent, that is without what clients held already, and as if those were sent
    every time; where uploads are relayed, also as they would be if clients sent those directly."""
    up, down = sum(result.bytes_up for result in phases), sum(result.bytes_down for result in phases)
    relayed = sum(result.bytes_relayed for result in phases)
    direct = {"up": up - relayed, "down": down - relayed, "between_clients": relayed}
    repeated = {"down_if_sent_every_time": sum(result.bytes_down_every_time for result in phases)}
    return {"up": up, "down": down, **repeated, **({"peer_to_peer": direct} if relayed else {})}
