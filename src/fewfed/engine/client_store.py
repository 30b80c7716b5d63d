"""What clients remember between participations: a bounded amount in memory, the rest on disk.

A new state is written to a new file. The old file is deleted only after the second checkpoint that does not need it: a
run killed at any moment finds all states that its last checkpoint names, and those of the one before, in case the last
is damaged.

Several processes may work on the states of one run. One of them has the list of all files and alone decides which of
them count (`adopt`); the others write new ones (`hand_over`) and read those they are told (`follow`).
"""

from __future__ import annotations

import re
import tempfile
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from fewfed import tree
from fewfed.engine import storage
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.storage import Damaged
from fewfed.tree import Tree

MEMORY_BYTES = 256 * 1024 * 1024

_BLOCK = 10**9
"""Numbers of files that one block of work has to itself: more than it can have files."""

State = tuple[str, str]
"""The file of a client's state, and its digest."""

_NAME = re.compile(r"(-1|[0-9]{1,18})-([0-9]{1,18})\.safetensors", re.ASCII)


class ClientStore:
    """Client states by number. They spill to `folder`, or to a temporary folder that goes with the store."""

    def __init__(
        self, folder: OwnFolder | Path | None = None, memory_bytes: int = MEMORY_BYTES, durable: bool = True
    ) -> None:
        """`durable`: every file is on the disk once it is written; else only those that another store commits."""
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = OwnFolder(folder) if isinstance(folder, Path) else folder
        self._memory_bytes = memory_bytes
        self._durable = durable
        self._memory: OrderedDict[int, tuple[Tree, int]] = OrderedDict()
        self._held = 0
        self._files: dict[int, State] = {}
        self._dirty: set[int] = set()
        self._obsolete: list[str] = []
        self._needed_before: list[str] = []
        """Files that the last checkpoint does not name, but the one before does."""
        self._written = 0
        self._before_round: dict[int, Tree | State | None] = {}
        """What clients with a new state in this round remembered before: a state in memory, in a file, or nothing."""
        self._adopted: set[str] = set()
        """Files written by other processes that may not be on the disk yet."""

    def __len__(self) -> int:
        return len(self._files.keys() | self._memory.keys())

    @property
    def folder(self) -> OwnFolder:
        """Where states are written."""
        return self._place()

    def get(self, client: int) -> Tree | None:
        """The client's state, or None if it has never taken part."""
        if client in self._memory:
            self._memory.move_to_end(client)
            return self._memory[client][0]
        if client in self._files:
            state = self._read(client)
            self._hold(client, state)
            return state
        return None

    def put(self, client: int, state: Tree) -> None:
        """Remember a copy of a state."""
        if client not in self._before_round and client in self._dirty and 2 * self._held > self._memory_bytes:
            self._write(client)  # Two states of many clients would not fit.
        self._note_before(client)
        self._dirty.add(client)
        self._hold(client, tree.clone(state))

    def files_of(self, clients: Iterable[int]) -> dict[int, State]:
        """Where the states of these clients lie, of those that have one in a file."""
        return {client: self._files[client] for client in clients if client in self._files}

    def next_block(self) -> int:
        """The number behind which another process may number the files of one block of work."""
        self._written = (self._written // _BLOCK + 1) * _BLOCK
        return self._written

    def adopt(self, client: int, file: State) -> None:
        """Another process has written a new state of the client: from now on it is this one."""
        _files({str(client): file})  # Raises where it is none of ours.
        self._note_before(client)
        self._release(client)
        self._dirty.discard(client)
        if client in self._files:
            self._obsolete.append(self._files[client][0])
        self._files[client] = file
        self._adopted.add(file[0])

    def follow(self, files: Mapping[int, State], clients: Iterable[int], after: int) -> None:
        """Another process says where the states of these clients lie, if they have one, and how to number new files."""
        for client in clients:
            told = files.get(client)
            if self._files.get(client) != told or client in self._dirty:
                self._release(client)
                self._dirty.discard(client)
                self._files.pop(client, None)
                if told is not None:
                    self._files[client] = told
        self._before_round.clear()
        self._obsolete.clear()
        self._written = after

    def hand_over(self) -> dict[int, State]:
        """Write all states since `follow`; where they lie is for the process that has the list."""
        first = self._written // _BLOCK * _BLOCK
        for client in sorted(self._dirty):
            self._write(client)
        for name in self._obsolete:
            if _number(name) > first:  # Written for want of memory, and replaced since: nobody has heard of it.
                self._place().remove(name)
        return self.files_of(sorted(self._before_round))

    def sweep(self) -> None:
        """Delete files that no list names: of processes that ended before they could tell of them."""
        before = {file[0] for file in self._before_round.values() if isinstance(file, tuple)}
        named = {name for name, _ in self._files.values()}
        self._remove_others({*named, *self._obsolete, *self._needed_before, *before})

    def finish_round(self) -> None:
        """What clients remember now is what `undo_round` goes back to."""
        self._before_round.clear()
        self._forget_passing()

    def undo_round(self) -> None:
        """Forget all states since the last `finish_round`."""
        for client, before in self._before_round.items():
            self._release(client)
            self._dirty.discard(client)
            if isinstance(before, dict):
                self._hold(client, before)
                self._dirty.add(client)
            elif self._files.get(client) != before:  # The new state is in a file already.
                self._obsolete.append(self._files.pop(client)[0])
                if before is not None:
                    self._files[client] = before
                    self._obsolete.remove(before[0])
        self._before_round.clear()
        self._forget_passing()

    def commit(self) -> dict[str, Any]:
        """Write states that are only in memory. The result (a file and its digest for each client) must be stored in
        the checkpoint."""
        for client in sorted(self._dirty):
            self._write(client)
        for name, _ in self._files.values():
            if name in self._adopted:
                self._place().flush(name)
        self._adopted.clear()
        return {str(client): list(file) for client, file in sorted(self._files.items())}

    def forget_obsolete(self) -> None:
        """A checkpoint was written: delete files that neither it nor the one before names."""
        for name in self._needed_before:
            self._place().remove(name)
        self._needed_before, self._obsolete = self._obsolete, []

    def check(self, index: Mapping[str, Any]) -> None:
        """Raise `Damaged` unless all states that a checkpoint names are there as they were written."""
        files = _files(index)
        for client in files:
            self._read(client, files)

    def named_in(self, index: Mapping[str, Any], client: int) -> Tree | None:
        """The state of one client that a checkpoint names, for somebody who only reads; None if it never took part."""
        files = _files(index)
        return self._read(client, files) if client in files else None

    def restore(self, index: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """Go back to the states that a checkpoint names. Files that neither it nor the one before names are deleted."""
        self._memory.clear()
        self._dirty.clear()
        self._obsolete.clear()
        self._before_round.clear()
        self._adopted.clear()
        self._held = 0
        self._files = _files(index)
        now = {name for name, _ in self._files.values()}
        self._needed_before = sorted({name for name, _ in _files(before or {}).values()} - now)
        keep = now | set(self._needed_before)
        self._remove_others(keep)
        self._written = max((_number(name) for name in keep), default=0)

    def close(self) -> None:
        if self._temporary:
            self._temporary.cleanup()

    def _forget_passing(self) -> None:
        """Delete files of other processes that were replaced before any checkpoint could name them."""
        passing = self._adopted.intersection(self._obsolete)
        for name in passing:
            self._place().remove(name)
        self._adopted -= passing
        self._obsolete = [name for name in self._obsolete if name not in passing]

    def _note_before(self, client: int) -> None:
        if client not in self._before_round:
            self._before_round[client] = self._memory[client][0] if client in self._dirty else self._files.get(client)

    def _remove_others(self, keep: Collection[str]) -> None:
        if self._folder is not None and self._folder.exists():
            for name in self._folder.names():
                if name not in keep and _NAME.match(name):  # Of ours, whole or in part.
                    self._folder.remove(name)

    def _read(self, client: int, files: Mapping[int, State] | None = None) -> Tree:
        name, digest = (files or self._files)[client]
        state, _ = storage.load(self._place() / name, digest)
        return state

    def _place(self) -> OwnFolder:
        """Where states are written; a temporary folder is made only when it is needed."""
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="fewfed-clients-")
            self._folder = OwnFolder(Path(self._temporary.name))
        return self._folder

    def _hold(self, client: int, state: Tree) -> None:
        self._release(client)
        size = tree.nbytes(state)
        self._memory[client] = (state, size)
        self._held += size
        while self._held > self._memory_bytes and len(self._memory) > 1:
            oldest = next(iter(self._memory))
            if oldest in self._dirty:
                self._write(oldest)
            self._release(oldest)

    def _release(self, client: int) -> None:
        if client in self._memory:
            self._held -= self._memory.pop(client)[1]

    def _write(self, client: int) -> None:
        place = self._place()
        place.make()
        self._written += 1
        name = f"{client}-{self._written}.safetensors"
        digest = storage.save(place / name, self._memory[client][0], durable=self._durable)
        if client in self._files:
            self._obsolete.append(self._files[client][0])
        self._files[client] = (name, digest)
        self._dirty.discard(client)


def _files(index: Mapping[str, Any]) -> dict[int, State]:
    """The index of a checkpoint, if it is one: names of ours, none of which leads out of the folder."""
    try:
        found = {int(client): (str(name), str(digest)) for client, (name, digest) in index.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise Damaged(f"the list of client states is damaged ({type(error).__name__})") from error
    for client, (name, _) in found.items():
        fits = _NAME.fullmatch(name)
        if fits is None or int(fits[1]) != client:
            raise Damaged(f"the list of client states is damaged: {name!r:.60} is not a state of client {client}")
    return found


def _number(name: str) -> int:
    fits = _NAME.fullmatch(name)
    assert fits is not None
    return int(fits[2])
