"""Writes the record of what is sent while a run goes on (`fewfed.privacy.record` says what it looks like).

Packets are written as they come, the index at the end of a round, before the round's checkpoint can be. A run that is
resumed forgets what it had recorded of rounds after its checkpoint and writes them again, with the same bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from fewfed.engine.loop import RoundView
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.packet import SERVER, Packet, encode
from fewfed.errors import RunError
from fewfed.phase import Clock, Phase
from fewfed.privacy.record import (
    BROADCAST,
    FOLDER,
    FORMAT,
    INDEX,
    Entry,
    Filed,
    Record,
    file_name,
    phase_folder,
    run_of,
)
from fewfed.privacy.record import round_folder as folder_of_round
from fewfed.privacy.recording import Recording
from fewfed.runs.seals import write_sealed
from fewfed.tree import Tree


class Recorder:
    """The witness that writes packets down, and the observer that writes the index."""

    def __init__(self, run: OwnFolder, recording: Recording, done: int = 0) -> None:
        """`run`: the run folder; `done`: its finished rounds, whose record stays."""
        self._run, self._recording = run, recording
        self._folder = run.below(FOLDER)
        self._entries = [entry for entry in _known(run) if entry.round <= done]
        self._bytes = sum(entry.size for entry in self._entries)
        self._full = any(entry.left_out or entry.broadcast is None for entry in self._entries)
        self._entry: Entry | None = None
        self._place = self._folder
        self._received: dict[int, Tree] = {}
        """What clients alone received that have sent nothing yet."""
        self._folder.make()
        self._write_index()

    def begins(self, phase: Phase, clock: Clock, shared: Tree, members: Sequence[int]) -> frozenset[int]:
        round = clock.round + 1
        self._entry, self._received = None, {}
        if round not in self._recording.rounds:
            return frozenset()
        chosen = self._recording.members(round, frozenset(members))
        self._entry = Entry(round, phase.name)
        broadcast = b"" if self._full else encode(Packet(clock.round, phase.name, SERVER, 0.0, shared))
        if not self._has_room(broadcast):
            self._entry = dataclasses.replace(self._entry, left_out=tuple(sorted(chosen)))
            return frozenset()
        self._place = _made(self._folder, (folder_of_round(round), phase_folder(phase.name)))
        self._entry = dataclasses.replace(self._entry, broadcast=self._written(file_name(BROADCAST), broadcast))
        return chosen

    def receives(self, client: int, personal: Tree) -> None:
        if personal:
            self._received[client] = personal

    def sends(self, packet: Packet) -> None:
        self._keep(packet.sender, packet)

    def ends(self) -> None:
        for client in sorted(self._received):  # Of those that failed: they have received it all the same.
            self._keep(client, None)
        if self._entry is not None:
            self._entries.append(self._entry)
        self._entry = None

    def after_round(self, view: RoundView) -> None:
        if view.clock.round + 1 in self._recording.rounds:
            self._write_index()

    def _keep(self, client: int, packet: Packet | None) -> None:
        """Write what a client received alone and what it sent: both, or neither where there is no room."""
        if self._entry is None:
            return
        entry, personal = self._entry, self._received.pop(client, None)
        if self._full:
            self._entry = dataclasses.replace(entry, left_out=(*entry.left_out, client))
            return
        head = (entry.round - 1, entry.phase)
        received = b"" if personal is None else encode(Packet(*head, SERVER, 0.0, personal))
        sent = b"" if packet is None else encode(packet)
        if not self._has_room(received, sent):
            self._entry = dataclasses.replace(entry, left_out=(*entry.left_out, client))
            return
        if received:
            filed = self._written(file_name("personal", client), received)
            entry = dataclasses.replace(entry, personal={**entry.personal, client: filed})
        if sent:
            filed = self._written(file_name("client", client), sent)
            entry = dataclasses.replace(entry, clients={**entry.clients, client: filed})
        self._entry = entry

    def _has_room(self, *contents: bytes) -> bool:
        """Whether some packets still fit; from the first that does not, nothing is kept any more."""
        self._full = self._full or self._bytes + sum(map(len, contents)) > self._recording.most_bytes
        return not self._full

    def _written(self, name: str, content: bytes) -> Filed:
        self._place.write(name, content)
        self._bytes += len(content)
        return Filed.of(content)

    def _write_index(self) -> None:
        wanted = self._recording
        content = {
            "format": FORMAT,
            "run": run_of(self._run),
            "wanted": {
                "rounds": sorted(wanted.rounds),
                "clients": "all" if wanted.clients is None else sorted(wanted.clients),
            },
            "most_bytes": wanted.most_bytes,
            "bytes": self._bytes,
            "complete": not self._full,
            "exchanges": [entry.as_json() for entry in self._entries],
        }
        write_sealed(self._folder / INDEX, content)


def _known(run: OwnFolder) -> tuple[Entry, ...]:
    """What was recorded before; nothing where nothing was."""
    place = run.below(FOLDER)
    if not place.exists() or not place.has(INDEX):
        return ()
    try:
        return Record.open(run.path).entries
    except RunError as error:
        raise RunError(f"{error}; remove '{place.path}' to go on without the record of the rounds before") from error


def _made(folder: OwnFolder, names: Iterable[str]) -> OwnFolder:
    for name in names:
        folder = folder.below(name)
        folder.make()
    return folder
