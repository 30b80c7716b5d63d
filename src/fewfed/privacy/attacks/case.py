"""What attacks work on: a run that is over, as far as it was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.engine.job import Job
from fewfed.engine.packet import Packet
from fewfed.engine.turn import Member
from fewfed.phase import Clock, Phase
from fewfed.privacy.shared_rows import SharedRows, of_client, row_upload, rows_in
from fewfed.tree import Tree

_MOST_CANDIDATES = 10_000
"""Rows among which a source is looked for."""


class Exchanged(Protocol):
    """One phase of one round as it was recorded."""

    @property
    def round(self) -> int:
        """Counted from 1."""

    @property
    def phase(self) -> str: ...

    @property
    def broadcast(self) -> Tree:
        """What every member received."""

    @property
    def packets(self) -> Mapping[int, Packet]:
        """What was handed over, by client."""

    @property
    def personal(self) -> Mapping[int, Tree]:
        """What a client alone received, where there was anything."""


class Recorded(Protocol):
    """What a run sent: `fewfed.privacy.record.Record` reads it from a run folder."""

    @property
    def rounds(self) -> tuple[int, ...]:
        """Counted from 1."""

    def exchanges(self, round: int) -> tuple[Exchanged, ...]: ...


@dataclass(frozen=True)
class Case:
    """A run, and how hard it is attacked."""

    job: Job
    rounds: int
    """Of the whole run."""
    record: Recorded
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seed: int = 0
    effort: float = 1.0
    """1 is the usual; steps and rows of an attack grow with it."""

    def clock(self, round: int) -> Clock:
        """The clock of a round counted from 1."""
        return Clock(round - 1, self.rounds, self.job.training.epochs)

    def phase(self, round: int, name: str) -> Phase:
        return self.job.phase(name, self.clock(round))

    def exchanges(self) -> tuple[Exchanged, ...]:
        """All that was recorded, in order."""
        return tuple(one for round in self.record.rounds for one in self.record.exchanges(round))

    @property
    def held(self) -> Examples:
        """What an attacker may hold: rows of the same kind that nobody trained on."""
        return self.job.federation.test

    def with_rows(self) -> tuple[Exchanged, ...]:
        """Of every phase in which clients sent rows the last exchange that was recorded."""
        found: dict[str, Exchanged] = {}
        for round in reversed(self.record.rounds):
            # Packets are many and large: a round is only read where it can have something new.
            phases = self.job.method.phases(self.clock(round))
            if any(row_upload(phase) and phase.name not in found for phase in phases):
                sent = {one.phase: one for one in self.record.exchanges(round) if self._sent_rows(one)}
                found = {**sent, **found}
        return tuple(found.values())

    def _sent_rows(self, one: Exchanged) -> bool:
        upload = row_upload(self.phase(one.round, one.phase))
        return bool(upload) and any(rows_in(packet.arrays, upload) for packet in one.packets.values())

    def of_sites(self, exchanged: Exchanged) -> dict[int, SharedRows]:
        """The rows of an exchange with the truth about them, by the client that sent them."""
        phase, clock = self.phase(exchanged.round, exchanged.phase), self.clock(exchanged.round)
        # What clients remember is not recorded: the rows that a method names depend on its plan alone.
        state = self.job.method.client_init(self.job.setup)
        return {
            client: of_client(
                self.job,
                phase,
                clock,
                exchanged.broadcast,
                Member(client, exchanged.personal.get(client, {}), state),
                packet.arrays,
            )
            for client, packet in sorted(exchanged.packets.items())
        }

    def shared_rows(self, exchanged: Exchanged) -> SharedRows:
        """The rows of all recorded clients in an exchange, with the truth about them. The rows behind them are those of
        these clients and then, up to ten thousand in all, of others: who looks for a source looks among all these."""
        by_client = {client: found for client, found in self.of_sites(exchanged).items() if len(found.rows)}
        sites = list(by_client.values())
        places = [(client, number) for client, found in by_client.items() for number in range(len(found))]
        origins, first = [], 0
        widest = max((found.origins.shape[1] for found in sites), default=1)
        for found in sites:
            moved = torch.where(found.present, found.origins + first, -1)
            origins.append(torch.nn.functional.pad(moved, (0, widest - moved.shape[1]), value=-1))
            first += len(found.rows)
        labels = [found.labels for found in sites if found.labels is not None]
        return SharedRows(
            torch.cat([found.sent for found in sites]),
            torch.cat(labels) if labels else None,
            torch.cat(origins),
            self._candidates([found.rows for found in sites], set(exchanged.packets)),
            torch.tensor(places, dtype=torch.long).reshape(-1, 2),
        )

    def _candidates(self, known: list[Examples], senders: set[int]) -> Examples:
        federation, rows = self.job.federation, sum(len(one) for one in known)
        for client in range(len(federation)):
            if rows >= _MOST_CANDIDATES:
                break
            if client not in senders:
                other = federation.examples(client)
                known.append(other.rows(torch.arange(min(len(other), _MOST_CANDIDATES - rows))))
                rows += len(known[-1])
        return Examples(torch.cat([one.x for one in known]), torch.cat([one.y for one in known]))


def some(rows: SharedRows, most: int, seed: int) -> SharedRows:
    """At most so many of some rows, drawn at random."""
    if len(rows) <= most:
        return rows
    drawn: Tensor = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most]
    return rows.part(drawn.sort().values)
