"""A record of what was sent: the raw packets of chosen rounds and clients, in the folder `packets` of a run.

    packets/index.json                              what is there, and what was left out
    packets/round-00001/PHASE/broadcast.packet      what every member of the phase received
    packets/round-00001/PHASE/client-00007.packet   what client 7 handed over, as the server accepted it
    packets/round-00001/PHASE/personal-00007.packet what it alone received, if anything

The index carries a digest of itself, of every packet and of the run it belongs to. Reading believes nothing else: what
is damaged, not what the index says, or of another run, is told in a sentence.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fewfed import tree
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.packet import SERVER, BadPacket, Packet, decode
from fewfed.engine.storage import Damaged, digest_of
from fewfed.errors import RunError
from fewfed.runs.seals import read_sealed
from fewfed.tree import Tree

FOLDER, INDEX = "packets", "index.json"
BROADCAST = "broadcast"
FORMAT = 1
_LONGEST = 100
_CONFIG = "config.json"
_DECIDES = ("seed", "data", "split", "clients", "cohort", "rounds", "validation")


@dataclass(frozen=True)
class Filed:
    """One packet on the disk."""

    size: int
    """In bytes."""
    digest: str

    @classmethod
    def of(cls, content: bytes) -> Filed:
        return cls(len(content), digest_of(content))


@dataclass(frozen=True)
class Entry:
    """One phase of one round in the index."""

    round: int
    """Counted from 1."""
    phase: str
    broadcast: Filed | None = None
    """None where there was no room even for it."""
    clients: Mapping[int, Filed] = field(default_factory=dict)
    personal: Mapping[int, Filed] = field(default_factory=dict)
    left_out: tuple[int, ...] = ()
    """Clients that were to be kept but did not fit."""

    @property
    def size(self) -> int:
        return sum(filed.size for _, filed in self.files())

    def files(self) -> Iterator[tuple[str, Filed]]:
        """The name of every packet of the phase."""
        if self.broadcast is not None:
            yield file_name(BROADCAST), self.broadcast
        for kind, filed in (("personal", self.personal), ("client", self.clients)):
            yield from ((file_name(kind, client), one) for client, one in filed.items())

    def as_json(self) -> dict[str, Any]:
        broadcast = None if self.broadcast is None else [self.broadcast.size, self.broadcast.digest]
        return {
            "round": self.round,
            "phase": self.phase,
            "folder": f"{round_folder(self.round)}/{phase_folder(self.phase)}",
            "broadcast": broadcast,
            "clients": {str(client): [one.size, one.digest] for client, one in self.clients.items()},
            "personal": {str(client): [one.size, one.digest] for client, one in self.personal.items()},
            "left_out": list(self.left_out),
        }

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Entry:
        broadcast = recorded["broadcast"]
        return cls(
            int(recorded["round"]),
            str(recorded["phase"]),
            None if broadcast is None else _filed(broadcast),
            {int(client): _filed(one) for client, one in recorded["clients"].items()},
            {int(client): _filed(one) for client, one in recorded["personal"].items()},
            tuple(int(client) for client in recorded["left_out"]),
        )


def _filed(recorded: Any) -> Filed:
    size, digest = recorded
    return Filed(int(size), str(digest))


@dataclass(frozen=True)
class Exchanged:
    """One phase of one round as it was recorded."""

    round: int
    """Counted from 1."""
    phase: str
    broadcast: Tree
    packets: Mapping[int, Packet]
    """By client."""
    personal: Mapping[int, Tree]
    """What single clients alone received; nothing for those that received nothing of their own."""


@dataclass(frozen=True)
class Record:
    """The record of a run."""

    folder: OwnFolder
    entries: tuple[Entry, ...]
    most_bytes: int

    @classmethod
    def open(cls, folder: Path) -> Record:
        """Of a run folder; `RunError` where nothing was recorded."""
        own = OwnFolder(folder)
        place = own.below(FOLDER)
        if not own.exists() or not place.exists() or not place.has(INDEX):
            raise RunError(
                f"'{folder}' holds no packets: they are kept by a run with --record packets, which runs the same "
                "rounds; run it again so, with another --out"
            )
        content, _ = read_sealed(place / INDEX)
        try:
            if content["format"] != FORMAT:
                raise RunError(f"'{place.path / INDEX}' is of format {content['format']!r:.20}: expected {FORMAT}")
            said, here = content.get("run"), run_of(own)
            if said and here and said != here:  # Attacks would be scored by rows that nobody sent.
                raise RunError(
                    f"'{place.path / INDEX}' is the record of another run: expected that of the run in '{folder}'"
                )
            entries = tuple(Entry.from_json(entry) for entry in content["exchanges"])
            return cls(place, entries, int(content["most_bytes"]))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise Damaged(
                f"'{place.path / INDEX}' is damaged ({type(error).__name__}): expected what a run with --record "
                "packets wrote"
            ) from error

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds of which something is there, counted from 1."""
        return tuple(sorted({entry.round for entry in self.entries if entry.broadcast is not None}))

    @property
    def left_out(self) -> tuple[Entry, ...]:
        """Where something that was to be kept is not there, because the record would have grown too large."""
        return tuple(entry for entry in self.entries if entry.broadcast is None or entry.left_out)

    @property
    def size(self) -> int:
        """Of all packets, in bytes."""
        return sum(entry.size for entry in self.entries)

    def exchanges(self, round: int) -> tuple[Exchanged, ...]:
        """The phases of a round in their order, read and checked."""
        found = [entry for entry in self.entries if entry.round == round and entry.broadcast is not None]
        if not found:
            known = ", ".join(map(str, self.rounds)) or "none"
            raise RunError(f"round {round} is not in the record '{self.folder.path}': expected one of {known}")
        return tuple(self._exchanged(entry) for entry in found)

    def problems(self) -> Iterator[tuple[str, str]]:
        """Every packet by its place in the run folder, and what is wrong with it; empty where nothing is."""
        for entry in self.entries:
            for name, filed in entry.files():
                place = f"{FOLDER}/{round_folder(entry.round)}/{phase_folder(entry.phase)}/{name}"
                try:
                    self._content(entry, name, filed)
                except RunError as error:
                    yield place, str(error)
                else:
                    yield place, ""

    def _exchanged(self, entry: Entry) -> Exchanged:
        if entry.broadcast is None:
            raise ValueError("a phase without its broadcast was left out")
        broadcast = self._packet(entry, file_name(BROADCAST), entry.broadcast, SERVER)
        return Exchanged(
            entry.round,
            entry.phase,
            broadcast.arrays,
            {
                client: self._packet(entry, file_name("client", client), filed, client)
                for client, filed in entry.clients.items()
            },
            {
                client: self._packet(entry, file_name("personal", client), filed, SERVER).arrays
                for client, filed in entry.personal.items()
            },
        )

    def _packet(self, entry: Entry, name: str, filed: Filed, sender: int) -> Packet:
        content = self._content(entry, name, filed)
        path = self._place(entry).path / name
        try:
            packet = decode(content, max(filed.size, 1))
        except BadPacket as error:
            raise Damaged(f"'{path}' is damaged: {error}") from error
        if (packet.round + 1, packet.phase, packet.sender) != (entry.round, entry.phase, sender):
            raise Damaged(
                f"'{path}' is of sender {packet.sender}, round {packet.round + 1}, phase '{packet.phase:.60}': "
                f"expected {sender}, {entry.round}, '{entry.phase:.60}'"
            )
        # Copied to where torch puts arrays: in the file they are not aligned, and some sums would round differently.
        return Packet(
            packet.round, packet.phase, packet.sender, packet.weight, tree.clone(packet.arrays), packet.metrics
        )

    def _content(self, entry: Entry, name: str, filed: Filed) -> bytes:
        place = self._place(entry)
        content = place.read(name, max(filed.size, 1))
        if digest_of(content) != filed.digest:
            raise Damaged(f"'{place.path / name}' is damaged: its content does not fit the digest in {INDEX}")
        return content

    def _place(self, entry: Entry) -> OwnFolder:
        return self.folder.below(round_folder(entry.round)).below(phase_folder(entry.phase))


def run_of(run: OwnFolder) -> str:
    """Which run a folder holds, whoever computed it: a digest of what decides what is sent. Empty where it holds none,
    or nobody can read which."""
    try:
        config, _ = read_sealed(run / _CONFIG)
        experiment = {name: config["experiment"].get(name) for name in _DECIDES}
        said = [config["method"], config["method_fields"], config["training"], experiment, config["inputs"]]
    except (RunError, KeyError, TypeError, AttributeError):
        return ""
    return digest_of(json.dumps(said, sort_keys=True).encode())


def round_folder(round: int) -> str:
    return f"round-{round:05d}"


def phase_folder(phase: str) -> str:
    """A phase's name as that of a folder; what could lead elsewhere, or is too long, is written otherwise."""
    written = quote(phase, safe=" ()[]+,=@")
    written = written.replace(".", "%2E") if written.startswith(".") else written
    return written if len(written) <= _LONGEST else f"{written[: _LONGEST - 20]}-{digest_of(phase.encode())[:16]}"


def file_name(kind: str, client: int | None = None) -> str:
    return f"{kind}.packet" if client is None else f"{kind}-{client:05d}.packet"
