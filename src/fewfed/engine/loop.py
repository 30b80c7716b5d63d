"""The only round loop. It works with phases and combinations, and names no method and no executor."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fewfed import tree
from fewfed.engine import asking
from fewfed.engine.combine import Combiner
from fewfed.engine.events import Event, NotCovered, ShapesUnknown, Withdrawn
from fewfed.engine.executor import Briefing, Executor, Invited
from fewfed.engine.holdings import Holdings
from fewfed.engine.job import Job, is_inside, members_of
from fewfed.engine.outcomes import Failed, Outcome, Partial
from fewfed.engine.packet import Packet
from fewfed.engine.provenance import Provenance
from fewfed.engine.records import PhaseRecord, RoundRecord, Tally, Traffic
from fewfed.engine.robust.combiner import DefendedCombiner
from fewfed.engine.schema import Schemas
from fewfed.errors import RunError
from fewfed.method import Combined, Method
from fewfed.phase import Clock, Phase
from fewfed.tree import Tree


@dataclass(frozen=True)
class PhaseResult:
    """One phase of one round, as observers see it: exactly what crossed between server and clients."""

    phase: Phase
    shared: Tree
    combined: Combined
    record: PhaseRecord
    failed: tuple[Failed, ...]
    sent_rows: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Of every upload of rows, how many each client of `combined` sent."""


@dataclass
class RoundView:
    """A finished round. Observers read it and add to its record."""

    job: Job
    clock: Clock
    cohort: Sequence[int]
    server: Tree
    executor: Executor
    holdings: Holdings
    phases: list[PhaseResult]
    record: RoundRecord
    provenance: Provenance | None = None
    """Whose the rows on the server are, where somebody may withdraw some."""

    @property
    def metrics(self) -> dict[str, Any]:
        """The record as it is written down."""
        return self.record.as_json()


class Observer(Protocol):
    """Looks at finished rounds: evaluates, counts, writes, shows."""

    def after_round(self, view: RoundView) -> None:
        """Called once a round, observers in their order."""


class Witness(Protocol):
    """Is shown, packet by packet, what crosses between server and clients. It changes nothing."""

    def begins(self, phase: Phase, clock: Clock, shared: Tree, members: Sequence[int]) -> frozenset[int]:
        """A phase begins with this broadcast: of which members everything is to be shown."""

    def receives(self, client: int, personal: Tree) -> None:
        """What one of them alone receives."""

    def sends(self, packet: Packet) -> None:
        """What one of them hands over, as the server accepted it; its arrays may be overwritten afterwards."""

    def ends(self) -> None:
        """All members of the phase are done."""


def run_rounds(
    job: Job,
    executor: Executor,
    observers: Sequence[Observer],
    *,
    rounds: int,
    cohort: int,
    holdings: Holdings | None = None,
    server: Tree | None = None,
    start: int = 0,
    provenance: Provenance | None = None,
    witness: Witness | None = None,
) -> Tree:
    """Run rounds [start, rounds) and return the server's tree.

    `server`, `holdings` and `provenance` are given when a run is resumed; the executor's homes are restored before.
    """
    asking.check_fit(job)
    coordinator = _Coordinator(job, executor, holdings or Holdings(), witness)
    asking.client_init(job)  # Clients call it for themselves: what is wrong with it is said before.
    state = executor.place(asking.server_init(job) if server is None else server)
    if provenance is None and any(gate.withdraws for gate in job.gates):
        provenance = Provenance.unknown() if _took_rows(job, start, rounds) else Provenance()
    for number in range(start, rounds):
        began = time.perf_counter()
        clock = Clock(number, rounds, job.training.epochs)
        drawn = job.plan.cohort(number, len(job.federation), cohort)
        results: list[PhaseResult] = []
        state, withdrawn = _without_withdrawn(job, clock, state, provenance)
        for phase in asking.phases(job, clock):
            result = coordinator.run(phase, clock, drawn, state)
            results.append(result)
            if not result.combined.clients:
                break  # Nothing to absorb, and the phases after it stand on it: the server stays as it is.
            after = asking.absorb(job.method, phase, state, result.combined)
            if provenance is not None:
                provenance.follow(job.method, phase, state, result.combined, result.sent_rows, after)
            state = after
        record = RoundRecord(
            round=number + 1,
            lr=job.training.lr_at(number),
            phases={result.phase.name: result.record for result in results},
            failed=tuple(failure for result in results for failure in result.failed),
            events=(*withdrawn, *coordinator.events(), *executor.events()),
            train_seconds=time.perf_counter() - began,
        )
        view = RoundView(job, clock, drawn, state, executor, coordinator.holdings, results, record, provenance)
        for observer in observers:
            observer.after_round(view)
    coordinator.close()
    return state


def _took_rows(job: Job, done: int, rounds: int) -> bool:
    """Whether clients sent rows in the first rounds of a run."""
    clocks = (Clock(number, rounds, job.training.epochs) for number in range(done))
    return any(upload.rows for at in clocks for phase in asking.phases(job, at) for upload in phase.uploads.values())


def _without_withdrawn(
    job: Job, clock: Clock, server: Tree, provenance: Provenance | None
) -> tuple[Tree, tuple[Withdrawn, ...]]:
    """The server's tree without rows of clients that have withdrawn, and what is to be told of it."""
    clients = frozenset[int]().union(*(gate.withdrawn(clock) for gate in job.gates))
    if provenance is None or not clients:
        return server, ()
    server, rows = provenance.without(server, clients)
    return server, ((Withdrawn(tuple(sorted(clients)), rows),) if rows else ())


class _Coordinator:
    """The server's side of a phase: makes the briefing, combines the packets, counts bytes and steps."""

    def __init__(self, job: Job, executor: Executor, holdings: Holdings, witness: Witness | None) -> None:
        self._job, self._executor, self._witness = job, executor, witness
        self.holdings = holdings
        self._schemas = Schemas(job)
        self._told: set[str] = set()
        self._worked: set[str] = set()
        self._judged: set[str] = set()
        """Phases of which it was said what no defence covers."""
        self._happened: list[Event] = []
        self._empty: dict[str, RunError] = {}
        """Phases of which at some time no packet could be used, and what is to be said if that does not change."""

    def run(self, phase: Phase, clock: Clock, drawn: Sequence[int], server: Tree) -> PhaseResult:
        shared = self._broadcast(phase, server)
        numbers = members_of(phase, drawn, len(self._job.federation))
        personal = asking.personal(self._job.method, phase, server, numbers[0])
        schema = self._schemas.of(phase, clock, shared, personal, numbers[0])
        witness = None if is_inside(phase) else self._witness  # Inside the server nothing crosses anything.
        shown = witness.begins(phase, clock, shared, numbers) if witness else frozenset()
        combiner, tally = self._combiner(phase, shared, len(numbers)), Tally()
        judged = combiner if isinstance(combiner, DefendedCombiner) else None
        briefing = Briefing(phase, clock, shared, schema, shown, apart=judged is not None)
        sending = _Sending(self._job.method, phase, shared, server, self.holdings)
        members = sending.to(numbers)
        failed: list[Failed] = []
        for outcome in self._executor.run(briefing, _seen(members, witness, shown) if witness else members):
            if isinstance(outcome, Failed):
                failed.append(outcome)
            elif isinstance(outcome, Partial):
                combiner.merge(outcome.combined)
                tally.add(outcome.packets)
            else:
                combiner.add(outcome.packet)
                tally.add([outcome.packet])
            if witness:
                _show(outcome, witness, shown)
        combined = combiner.finish()
        if witness:
            witness.ends()
        if judged:
            failed += judged.refused
            self._happened += judged.events
        if combined.clients:
            self._worked.add(phase.name)
        else:
            self._refuse_nobody(phase, clock, failed)
        up = 0 if is_inside(phase) else combiner.bytes
        record = PhaseRecord(
            traffic=Traffic(up, sending.down, sending.every_time, combiner.relayed),
            clients=len(combined.clients),
            steps=tally.steps,
            rows=combiner.rows(),
            terms=tally.terms,
            reported=tally.reported,
            defended=judged.defended if judged else None,
        )
        return PhaseResult(phase, shared, combined, record, tuple(failed), combiner.sent_rows())

    def _combiner(self, phase: Phase, shared: Tree, invited: int) -> Combiner | DefendedCombiner:
        clients, defence = len(self._job.federation), self._job.defence
        if defence is None or is_inside(phase):
            return Combiner(phase, clients)
        if phase.name not in self._judged:
            self._judged.add(phase.name)
            if uncovered := defence.uncovered(phase):
                self._happened.append(NotCovered(phase.name, uncovered))
        concerned = defence.concerns(phase)
        return DefendedCombiner(defence, phase, clients, shared, invited) if concerned else Combiner(phase, clients)

    def _broadcast(self, phase: Phase, server: Tree) -> Tree:
        try:
            return asking.broadcast(self._job.method, phase, server)
        except RunError as error:
            if not self._empty:
                raise
            why = next(iter(self._empty.values()))
            raise RunError(f"{why}; phase '{phase.name}' cannot do without ({error})") from error

    def _refuse_nobody(self, phase: Phase, clock: Clock, failed: Sequence[Failed]) -> None:
        """Nothing a client sends may end a run, so a phase of which no packet was accepted is left out.

        There is no use in going on where all failed by themselves, since then the model or the method is broken, nor
        where all packets are refused from the start: then the method does not hand over what it declares.
        """
        if any(failure.may_pass for failure in failed):  # Other sites may take part in the next round.
            self._empty[phase.name] = _nobody(phase, clock, failed)
            return
        refused = any(failure.cause in ("packet", "defence") for failure in failed)
        if not refused or (len(failed) > 1 and phase.name not in self._worked):
            raise _nobody(phase, clock, failed)
        self._empty[phase.name] = _nobody(phase, clock, failed)

    def close(self) -> None:
        """The last round is over: raise for a phase that never brought anything."""
        for name, error in self._empty.items():
            if name not in self._worked:
                raise error

    def events(self) -> list[Event]:
        new = [(phase, why) for phase, why in self._schemas.unknown.items() if phase not in self._told]
        self._told.update(phase for phase, _ in new)
        happened, self._happened = self._happened, []
        return [*(ShapesUnknown(phase, why) for phase, why in new), *happened]


def _nobody(phase: Phase, clock: Clock, failed: Sequence[Failed]) -> RunError:
    first = min(failed, key=lambda failure: failure.client)  # Executors find failures in different orders.
    return RunError(
        f"round {clock.round + 1}, phase '{phase.name}': all {len(failed)} members failed; "
        f"the first, client {first.client}: {first.reason}"
    )


def _seen(members: Iterator[Invited], witness: Witness, shown: frozenset[int]) -> Iterator[Invited]:
    """The same members; what some of them alone receive is shown on its way."""
    for member in members:
        if member.client in shown:
            witness.receives(member.client, member.personal)
        yield member


def _show(outcome: Outcome, witness: Witness, shown: frozenset[int]) -> None:
    if isinstance(outcome, Partial):
        for packet in outcome.shown:
            witness.sends(packet)
    elif not isinstance(outcome, Failed) and outcome.packet.sender in shown:
        witness.sends(outcome.packet)


class _Sending:
    """Yields what each member receives, and counts its bytes."""

    def __init__(self, method: Method, phase: Phase, shared: Tree, server: Tree, holdings: Holdings) -> None:
        self._method, self._phase, self._server, self._holdings = method, phase, server, holdings
        self._whole = tree.nbytes(shared)
        self._travels = not is_inside(phase)
        self.down = self.every_time = 0
        if self._travels:
            holdings.announce(shared)

    def to(self, clients: Sequence[int]) -> Iterator[Invited]:
        """One client after another, as the executor asks for them."""
        for client in clients:
            personal = asking.personal(self._method, self._phase, self._server, client)
            if self._travels:
                own = tree.nbytes(personal)
                self.down += self._holdings.deliver(client) + own
                self.every_time += self._whole + own
            yield Invited(client, personal)
