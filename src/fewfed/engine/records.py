"""The record of a round: typed here, written as JSON into the run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fewfed.engine.events import Event
from fewfed.engine.outcomes import Failed
from fewfed.engine.packet import Packet


@dataclass
class Tally:
    """Metrics of a phase's packets, added up while they come in."""

    steps: int = 0
    _told: int = 0
    """Steps of those clients that tell their losses."""
    _terms: dict[str, float] = field(default_factory=dict)
    _reported: dict[str, list[float]] = field(default_factory=dict)

    def add(self, packets: Iterable[Packet]) -> None:
        for packet in packets:
            self.steps += packet.steps
            self._told += packet.steps if packet.terms else 0
            for name, value in packet.terms.items():
                self._terms[name] = self._terms.get(name, 0.0) + value * packet.steps
            for name, value in packet.reported.items():
                self._reported.setdefault(name, []).append(value)

    @property
    def terms(self) -> dict[str, float]:
        """Mean of each loss term over the steps of all clients that tell theirs."""
        return {name: value / self._told for name, value in self._terms.items()} if self._told else {}

    @property
    def reported(self) -> dict[str, float]:
        """Mean over clients of every number the method reports."""
        return {name: sum(values) / len(values) for name, values in self._reported.items()}


@dataclass(frozen=True)
class Traffic:
    """Bytes through the server."""

    up: int = 0
    down: int = 0
    """As sent, without what clients already held."""
    down_every_time: int = 0
    """As if everything were sent each time."""
    relayed: int = 0
    """Part of what went up that the server only hands on to another client."""

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*(a + b for a, b in zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)))

    def as_json(self) -> dict[str, Any]:
        """Where uploads are relayed, also as it would be if clients sent those directly."""
        direct = {"up": self.up - self.relayed, "down": self.down - self.relayed, "between_clients": self.relayed}
        return {
            "up": self.up,
            "down": self.down,
            "down_if_sent_every_time": self.down_every_time,
            **({"peer_to_peer": direct} if self.relayed else {}),
        }


@dataclass(frozen=True)
class Defended:
    """What a defence did in one phase: whose packets it refused, shortened or did not choose, and rows it left out."""

    refused: tuple[int, ...] = ()
    clipped: tuple[int, ...] = ()
    not_chosen: tuple[int, ...] = ()
    rows: Mapping[int, int] = field(default_factory=dict)
    """How many, by client."""
    unjudged_rows: int = 0
    """Rows of classes that too few clients sent: they stay."""

    def as_json(self) -> dict[str, Any]:
        """Without what did not happen."""
        found = {name: list(getattr(self, name)) for name in ("refused", "clipped", "not_chosen")}
        rows = {"rows_left_out": {str(client): count for client, count in self.rows.items()}}
        return {name: value for name, value in {**found, **rows, "rows_unjudged": self.unjudged_rows}.items() if value}


@dataclass(frozen=True)
class PhaseRecord:
    """One phase of a round."""

    traffic: Traffic
    clients: int
    """How many took part."""
    steps: int
    rows: Mapping[str, int]
    """Of every concatenated upload: the size of a shared buffer."""
    terms: Mapping[str, float]
    reported: Mapping[str, float]
    defended: Defended | None = None
    """What a defence did, where there is one."""

    def as_json(self) -> dict[str, Any]:
        defended = self.defended.as_json() if self.defended else {}
        optional = {"rows": self.rows, "terms": self.terms, "metrics": self.reported, "defended": defended}
        return {
            "bytes_up": self.traffic.up,
            "bytes_down": self.traffic.down,
            "bytes_down_if_sent_every_time": self.traffic.down_every_time,
            "clients": self.clients,
            "steps": self.steps,
            **{name: dict(value) for name, value in optional.items() if value},
        }


@dataclass
class RoundRecord:
    """One round, counted from 1. Observers add what they find."""

    round: int
    lr: float
    phases: Mapping[str, PhaseRecord]
    failed: tuple[Failed, ...]
    events: tuple[Event, ...]
    train_seconds: float
    added: dict[str, Any] = field(default_factory=dict)
    """By observers: accuracy, loss and whatever else was asked for."""

    def add(self, found: Mapping[str, Any]) -> None:
        self.added |= found

    def as_json(self) -> dict[str, Any]:
        traffic = sum((phase.traffic for phase in self.phases.values()), Traffic())
        return {
            "round": self.round,
            "lr": self.lr,
            "bytes": traffic.as_json(),
            "steps": sum(phase.steps for phase in self.phases.values()),
            "phases": {name: phase.as_json() for name, phase in self.phases.items()},
            "failed": [failure.as_json() for failure in self.failed],
            "events": [event.as_json() for event in self.events],
            "train_seconds": self.train_seconds,
            **self.added,
        }
