"""Exposure, FLea's Fig. 9(a): the part of all pairs of clients of which one has received rows of the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import PSEUDO_CLIENT, Job, members_of
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.phase import Clock, Combine, Phase


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
    """Follows rows from the clients that upload them, over the server, to those that receive them."""

    def __init__(self, clients: int) -> None:
        self.pairs = Pairs(clients)
        self._origin: dict[str, tuple[int, ...]] = {}

    def phase(self, uploads: Iterable[str], broadcast: Iterable[str], members: Iterable[int]) -> None:
        taking_part = tuple(client for client in members if client != PSEUDO_CLIENT)
        for name in broadcast:
            if name in self._origin:
                self.pairs.deliver(self._origin[name], taking_part)
        self._origin |= {name: taking_part for name in uploads if taking_part}


@dataclass
class Exposure:
    """The observer: `curve` has the exposure after every round, a round's metrics have it as `exposure`.

    It reads what phases declare and what was broadcast: rows that are concatenated on the server and come back under
    their name have been seen by whoever received them. A run that is taken up again counts from there.
    """

    curve: list[float] = field(default_factory=list)
    _flow: _Flow | None = None

    def after_round(self, view: RoundView) -> None:
        self._flow = self._flow or _Flow(len(view.job.federation))
        for result in view.phases:
            self._flow.phase(rows_of(result.phase), result.shared, result.combined.clients)
        self.curve.append(self._flow.pairs.fraction)
        view.record.add({"exposure": self.curve[-1]})


def exposure_curve(job: Job, cohort: int, rounds: int) -> list[float]:
    """The exposure after every round of a run that need not be made: cohorts are known beforehand.

    What a phase broadcasts is learnt from two short rounds with one client; nobody is assumed to fail.
    """
    broadcasts = _broadcasts(job)
    clients = len(job.federation)
    flow = _Flow(clients)
    curve = []
    for number in range(rounds):
        drawn = job.plan.cohort(number, clients, cohort)
        for phase in job.method.phases(Clock(number, rounds, job.training.epochs)):
            flow.phase(rows_of(phase), broadcasts.get(phase.name, ()), members_of(phase, drawn, clients))
        curve.append(flow.pairs.fraction)
    return curve


def expected_exposure(participation: float, round: int) -> float:
    """Expected directed exposure after a round counted from 1, when rows pass from one cohort to the next."""
    return float(1 - (1 - participation**2) ** (round - 1))


def rows_of(phase: Phase) -> list[str]:
    """The uploads whose rows the server sees, and may hand on, one by one."""
    return [name for name, upload in phase.uploads.items() if upload.rows and upload.combine is Combine.CONCAT]


def _broadcasts(job: Job) -> dict[str, tuple[str, ...]]:
    @dataclass
    class Watch:
        names: dict[str, tuple[str, ...]] = field(default_factory=dict)

        def after_round(self, view: RoundView) -> None:
            for result in view.phases:
                known = self.names.get(result.phase.name, ())
                self.names[result.phase.name] = tuple(dict.fromkeys((*known, *result.shared)))

    watch = Watch()
    short = dataclasses.replace(job, training=dataclasses.replace(job.training, epochs=1))
    run_rounds(short, Sequential(short), [watch], rounds=2, cohort=1)
    return watch.names
