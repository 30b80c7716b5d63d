"""The vocabulary of one exchange: who takes part, how long they train, what leaves them and how it is combined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any


class Combine(Enum):
    """How the server combines one named upload over the clients that sent it. This *is* the privacy statement."""

    MEAN = "mean"
    """Weighted mean. The server needs no single client's value, so it may go through secure aggregation."""
    SUM = "sum"
    """Plain sum; secure aggregation likewise."""
    CONCAT = "concat"
    """Rows of all clients one after another, without names: the server sees every row as it is."""
    KEEP = "keep"
    """One entry a client, under its number: the server sees each client's value as it is."""

    @property
    def seen_raw(self) -> bool:
        """Whether the server reads single clients' values, so that an attack may start from them."""
        return self in (Combine.CONCAT, Combine.KEEP)


class Cohort(Enum):
    """Who takes part in a phase."""

    ROUND = "round"
    """The clients drawn for this round; every such phase of a round has the same ones."""
    ALL = "all"
    """Every client."""
    SERVER = "server"
    """The server itself, as a pseudo-client whose data the method names."""
    UNION = "union"
    """One pseudo-client that holds every client's data: no federation at all, the upper reference."""


MODEL: Mapping[str, Combine] = MappingProxyType({"model": Combine.MEAN})
"""What FedAvg uploads."""

NOTHING: Mapping[str, Combine] = MappingProxyType({})


@dataclass(frozen=True)
class Phase:
    """One exchange. `epochs` may be 0: then clients only compute what they upload."""

    name: str
    epochs: int
    uploads: Mapping[str, Combine] = field(default_factory=lambda: MODEL)
    cohort: Cohort = Cohort.ROUND
    keeps_state: bool = False
    """Whether a client remembers something between its participations because of this phase."""
    relayed: frozenset[str] = frozenset()
    """Uploads that the server only hands on to one other client each, and that could go there directly."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Training fields that are this phase's own: another optimiser for a generator, say."""


@dataclass(frozen=True)
class Clock:
    """Where a run is: round counts from 0; `epochs` is what the experiment asks of a full local training."""

    round: int
    rounds: int
    epochs: int

    @property
    def first(self) -> bool:
        return self.round == 0

    @property
    def last(self) -> bool:
        return self.round == self.rounds - 1
