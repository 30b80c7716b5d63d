"""The interface of an executor: it runs one phase for some clients and says what came of each.

Packets are combined in the order of the client numbers, so that results do not depend on which client was faster. A
`Partial` covers members that follow each other. An executor that must give the same bits as `sequential` yields single
packets, or one `Partial` for each whole shard (`fewfed.engine.combine`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from fewfed.data.federation import HeldOut
from fewfed.engine.events import Event
from fewfed.engine.homes import Homes
from fewfed.engine.outcomes import Outcome
from fewfed.engine.schema import Schema
from fewfed.engine.scoring import Answered
from fewfed.phase import Clock, Phase
from fewfed.task import Score
from fewfed.tree import Tree


@dataclass(frozen=True)
class Briefing:
    """What all members of a phase are told, and what is expected of them."""

    phase: Phase
    clock: Clock
    shared: Tree
    schema: Schema
    shown: frozenset[int] = frozenset()
    """Clients whose packets somebody wants to see whole, also where they are combined with others' before."""
    apart: bool = False
    """Whether every packet must come by itself, since the server judges them against each other: no `Partial`."""


@dataclass(frozen=True)
class Invited:
    """A client that takes part in a phase, and what it alone receives."""

    client: int
    personal: Tree


class Executor(Protocol):
    """Runs one phase for its members."""

    @property
    def homes(self) -> Homes:
        """Where the clients live."""

    def place(self, server: Tree) -> Tree:
        """The server's tree, moved to the device this executor computes on."""

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        """Yield an outcome for every member. Its packet is checked, and its state stored, before that."""

    def evaluate(self, models: Iterable[Tree], on: HeldOut = "test") -> list[Score]:
        """Score every model on the whole test part, or on all validation rows."""

    def evaluate_personal(self, server: Tree, clients: Sequence[int], on: HeldOut = "test") -> list[Score]:
        """The same for the own models of some clients."""

    def answers(self, models: Iterable[Tree], on: HeldOut = "test") -> Iterator[Answered]:
        """What every model says of all these rows: models one after another, each with its rows in their order."""

    def answers_personal(self, server: Tree, clients: Sequence[int], on: HeldOut = "test") -> Iterator[Answered]:
        """The same for the own models of some clients."""

    def events(self) -> list[Event]:
        """What happened since the last call that a user of the run should know."""

    def close(self) -> None:
        """End processes and free memory."""
