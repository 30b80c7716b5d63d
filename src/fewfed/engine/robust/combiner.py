"""Combines the packets of one phase under a defence. Unlike the usual combiner it holds all of them until the end."""

from __future__ import annotations

import dataclasses

from fewfed import tree
from fewfed.engine.combine import Combiner
from fewfed.engine.events import Event, RuleFellBack
from fewfed.engine.outcomes import Failed
from fewfed.engine.packet import Packet
from fewfed.engine.records import Defended
from fewfed.engine.robust.defence import Defence
from fewfed.engine.robust.median import Median
from fewfed.engine.robust.parts import Gathered
from fewfed.engine.robust.rule import Rule, Ruled
from fewfed.engine.threads import one_thread
from fewfed.errors import RunError
from fewfed.method import Combined
from fewfed.phase import Phase
from fewfed.tree import Tree


class DefendedCombiner:
    """Does what `Combiner` does, for packets that are judged against each other first."""

    def __init__(self, defence: Defence, phase: Phase, clients: int, shared: Tree, invited: int) -> None:
        """`clients`: how many there are in the federation; `invited`: how many are members of the phase."""
        self._defence, self._phase, self._shared = defence, phase, shared
        self._clients, self._invited = clients, invited
        self._packets: list[Packet] = []
        self._combiner = Combiner(phase, clients)
        self.bytes = 0
        self.relayed = 0
        self.refused: list[Failed] = []
        """Clients whose packets were refused."""
        self.events: list[Event] = []
        self.defended = Defended()

    def add(self, packet: Packet) -> None:
        """Keep one accepted packet. Its arrays may be overwritten afterwards."""
        self._packets.append(dataclasses.replace(packet, arrays=tree.clone(packet.arrays)))
        self.bytes += tree.nbytes(packet.arrays)
        self.relayed += tree.nbytes({name: packet.arrays[name] for name in self._phase.relayed})

    def merge(self, other: Combiner) -> None:  # noqa: ARG002
        """What is combined already cannot be judged."""
        raise RunError(
            f"phase '{self._phase.name}': the executor hands over packets that are combined already, but robust "
            "combination must see each: expected an executor that yields single packets where a briefing asks for "
            "them, such as sequential, workers or cuda"
        )

    def finish(self) -> Combined:
        """What is left of the packets, combined."""
        with one_thread():
            gathered = Gathered(self._phase, self._shared, tuple(self._packets))
            self._packets = []
            if self._defence.bound:
                gathered = self._bounded(gathered)
            ruled = self._ruled(gathered)
            rows, filter_ = None, self._defence.rows
            packets = ruled.packets
            if filter_ and filter_.covers(self._phase):
                rows = filter_.applied(Gathered(self._phase, self._shared, packets))
                packets = rows.packets
            self.defended = Defended(
                refused=tuple(failure.client for failure in self.refused),
                clipped=ruled.clipped,
                not_chosen=ruled.not_chosen,
                rows={} if rows is None else rows.left_out,
                unjudged_rows=0 if rows is None else rows.unjudged,
            )
            return self._combined(packets, ruled.values)

    def sent_rows(self) -> dict[str, tuple[int, ...]]:
        """Of every CONCAT upload, how many rows of each client are left, in the order of `finish().clients`."""
        return self._combiner.sent_rows()

    def rows(self) -> dict[str, int]:
        """How many rows every CONCAT upload has."""
        return self._combiner.rows()

    def _bounded(self, gathered: Gathered) -> Gathered:
        reasons = self._defence.bound.refused(gathered) if self._defence.bound else {}
        self.refused = [Failed(client, self._phase.name, why, "defence") for client, why in reasons.items()]
        return gathered.without(frozenset(reasons))

    def _ruled(self, gathered: Gathered) -> Ruled:
        rule, count = self._defence.rule, len(gathered.packets)
        covered = rule is not None and any(rule.covers(upload) for upload in self._phase.uploads.values())
        if rule is None or not covered or not count:
            return Ruled(gathered.packets)
        needed = rule.needs(self._invited)
        taken: Rule = rule if count >= needed or rule.works_with_fewer else Median()
        if count < needed:
            self.events.append(RuleFellBack(self._phase.name, rule.name, count, needed, taken.name))
        return taken.applied(gathered, self._invited)

    def _combined(self, packets: tuple[Packet, ...], values: Tree) -> Combined:
        """As declared, but for what a rule has combined."""
        rest = {name: upload for name, upload in self._phase.uploads.items() if name not in values}
        phase = dataclasses.replace(self._phase, uploads=rest, relayed=self._phase.relayed & rest.keys())
        self._combiner = Combiner(phase, self._clients)
        for packet in packets:
            self._combiner.add(packet)
        found = self._combiner.finish()
        ordered = {name: {**found.values, **values}[name] for name in self._phase.uploads if packets}
        return found._replace(values=ordered)
