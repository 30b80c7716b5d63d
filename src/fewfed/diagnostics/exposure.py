"""Exposure, FLea's Fig. 9(a): the part of all pairs of clients of which one has received rows of the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fewfed import tree
from fewfed.engine import asking
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import PSEUDO_CLIENT, Job, members_of
from fewfed.engine.loop import PhaseResult, RoundView, run_rounds
from fewfed.errors import ConfigError
from fewfed.phase import Clock, Combine, Phase
from fewfed.tree import Tree


class Pairs:
    """Which client has received rows of which. Directed: that j has those of i says nothing about i."""

    def __init__(self, clients: int) -> None:
        self._received = np.zeros((clients, clients), dtype=bool)
        self._count = 0

    def deliver(self, senders: Iterable[int], receivers: Iterable[int]) -> None:
        block = np.ix_(sorted(set(senders)), sorted(set(receivers)))
        known = self._received[block]
        self._count += known.size - int(np.count_nonzero(known))  # Counting all K² pairs would cost more than a round.
        self._received[block] = True

    @property
    def fraction(self) -> float:
        """Of all K² pairs; a client that gets its own rows back counts as one."""
        return self._count / self._received.size


class _Flow:
    """Follows rows from the clients that upload them, over the server, to those that receive them.

    A server may keep the rows of several uploads under one name, the newest first to stay: how many of the last ones a
    broadcast holds is told by its number of rows, or beforehand.
    """

    def __init__(self, clients: int) -> None:
        self.pairs = Pairs(clients)
        self._uploads: dict[str, list[_Uploaded]] = {}

    def receive(self, name: str, members: Iterable[int], last: int) -> None:
        """Members receive the rows of the last uploads under a name."""
        here = _clients(members)
        for uploaded in self._uploads.get(name, [])[-last:] if last else []:
            self.pairs.deliver(uploaded.clients, here)

    def send(self, name: str, members: Iterable[int], rows: int = 0) -> None:
        """Members upload so many rows under a name."""
        if here := _clients(members):
            self._uploads.setdefault(name, []).append(_Uploaded(here, rows))

    def held(self, name: str, rows: int) -> int:
        """How many of the last uploads under a name so many rows are."""
        known, held = self._uploads.get(name, []), 0
        while rows > 0 and held < len(known):
            held += 1
            rows -= known[-held].rows
        return held

    def sent(self, name: str) -> int:
        """How many uploads there were under a name."""
        return len(self._uploads.get(name, []))


@dataclass(frozen=True)
class _Uploaded:
    """One upload: whose rows, and how many."""

    clients: tuple[int, ...]
    rows: int


def _clients(members: Iterable[int]) -> tuple[int, ...]:
    return tuple(client for client in members if client != PSEUDO_CLIENT)


@dataclass
class Exposure:
    """The observer: `curve` has the exposure after every round, a round's metrics have it as `exposure`.

    It reads what phases declare and what was broadcast: rows that are concatenated on the server and come back under
    their name have been seen by whoever received them, those of earlier rounds too where the server keeps them. A run
    that is taken up again counts from there.
    """

    curve: list[float] = field(default_factory=list)
    _flow: _Flow | None = None

    def after_round(self, view: RoundView) -> None:
        self._flow = self._flow or _Flow(len(view.job.federation))
        for result in view.phases:
            _refuse_single(view, result.phase)
            _follow(self._flow, result)
        self.curve.append(self._flow.pairs.fraction)
        view.record.add({"exposure": self.curve[-1]})


def exposure_curve(job: Job, cohort: int, rounds: int) -> list[float]:
    """The exposure after every round of a run that need not be made: cohorts are known beforehand.

    What a phase broadcasts, and of how many rounds, is learnt from short rounds with one client; nobody is assumed to
    fail, nor to have too few rows to send one.
    """
    broadcasts = _broadcasts(job, rounds)
    clients = len(job.federation)
    flow = _Flow(clients)
    curve = []
    for number in range(rounds):
        drawn = job.plan.cohort(number, clients, cohort)
        for phase in job.method.phases(Clock(number, rounds, job.training.epochs)):
            members = members_of(phase, drawn, clients)
            for name, last in broadcasts.get(phase.name, {}).items():
                flow.receive(name, members, last)
            for name in rows_of(phase):
                flow.send(name, members)
        curve.append(flow.pairs.fraction)
    return curve


def expected_exposure(participation: float, round: int) -> float:
    """Expected directed exposure after a round counted from 1, when rows pass from one cohort to the next."""
    return float(1 - (1 - participation**2) ** (round - 1))


def rows_of(phase: Phase) -> list[str]:
    """The uploads whose rows the server sees, and may hand on, one by one."""
    return [name for name, upload in phase.uploads.items() if upload.rows and upload.combine is Combine.CONCAT]


def _follow(flow: _Flow, result: PhaseResult) -> dict[str, int]:
    """Let one phase's rows flow; how many of the last uploads each name that was broadcast held."""
    held = {}
    for name, value in result.shared.items():
        if last := flow.held(name, _rows_in(value)):
            flow.receive(name, result.combined.clients, last)
            held[name] = last
    for name in rows_of(result.phase):
        counts = result.sent_rows.get(name, ())  # Empty where nobody sent any; else as many as clients.
        senders = [client for client, rows in zip(result.combined.clients, counts, strict=False) if rows]
        flow.send(name, senders, _rows_in(result.combined.values.get(name, {})))
    return held


def _refuse_single(view: RoundView, phase: Phase) -> None:
    """Raise where a phase hands rows to its members one by one: who has received whose is then not in the broadcast."""
    sent = {name for result in view.phases for name in rows_of(result.phase)}
    given = asking.personal(view.job.method, phase, view.server, view.cohort[0])
    if any(sent & set(path.split("/")) for path, _ in tree.leaves(given)):
        raise ConfigError(
            f"exposure is counted from what is broadcast, but '{view.job.method.label}' hands rows to single clients "
            f"in phase '{phase.name}': expected a method that broadcasts them"
        )


def _rows_in(value: Tree) -> int:
    """Rows of an entry of a tree; every leaf of it has as many."""
    return next((len(leaf) for _, leaf in tree.leaves({"": value}) if leaf.dim()), 0)


def _broadcasts(job: Job, rounds: int) -> Mapping[str, Mapping[str, int]]:
    """For every phase, the names that are broadcast and how many of the last uploads they hold."""
    short = dataclasses.replace(job, training=dataclasses.replace(job.training, epochs=1))
    tried = 3
    while True:
        watch = _Watch(_Flow(len(job.federation)))
        run_rounds(short, Sequential(short), [watch], rounds=tried, cohort=1)
        if tried >= rounds or not watch.grows:
            return watch.held
        tried = min(2 * tried, rounds)


@dataclass
class _Watch:
    """Notes what phases broadcast."""

    flow: _Flow
    held: dict[str, dict[str, int]] = field(default_factory=dict)
    grows: bool = False
    """Whether a broadcast still held everything there ever was, and more came."""

    def after_round(self, view: RoundView) -> None:
        self.grows = False
        for result in view.phases:
            _refuse_single(view, result.phase)
            whole = {name: self.flow.sent(name) for name in result.shared}
            found = _follow(self.flow, result)
            known = self.held.setdefault(result.phase.name, {})
            known |= {name: max(last, known.get(name, 0)) for name, last in found.items()}
            uploaded = {name for after in view.phases for name in rows_of(after.phase)}
            self.grows |= any(last == whole[name] and name in uploaded for name, last in found.items())
