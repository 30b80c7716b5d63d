"""Executors that look closely at what a method does, and otherwise run it as `sequential` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from fewfed import tree
from fewfed.conformance.differences import differences
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job, is_inside
from fewfed.engine.outcomes import Done, Outcome
from fewfed.engine.packet import Packet, decode, encode
from fewfed.engine.reception import Reception
from fewfed.phase import Phase
from fewfed.tree import Tree


class Guarded(Sequential):
    """Notes where a method breaks the agreement between methods and engines."""

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


class Careful(Sequential):
    """Compares every number of what clients are given after each call of their method.

    Other executors do so only after something has changed.
    """

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        reception = Reception(briefing, self.homes)
        self._lender.share(briefing.shared)
        for member in self.at_home(briefing.phase, members):
            found = self._lender.turn(briefing.phase, briefing.clock, member, careful=True)
            yield reception.take(member.client, found)


class Scales(Sequential):
    """Notes the weight of every packet that leaves a client."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.found: list[tuple[Phase, dict[int, float]]] = []

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        weights: dict[int, float] = {}
        for outcome in super().run(briefing, members):
            if isinstance(outcome, Done):
                weights[outcome.packet.sender] = outcome.packet.weight
            yield outcome
        if not is_inside(briefing.phase):
            self.found.append((briefing.phase, weights))
