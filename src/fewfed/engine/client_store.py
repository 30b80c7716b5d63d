"""What clients remember between participations: a bounded amount in memory, the rest on disk.

A new state is written to a new file. The old file is deleted only after the second checkpoint that does not need it: a
run killed at any moment finds all states that its last checkpoint names, and those of the one before, in case the last
is damaged.
"""

from __future__ import annotations

import re
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fewfed import tree
from fewfed.engine import storage
from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.storage import Damaged
from fewfed.tree import Tree

MEMORY_BYTES = 256 * 1024 * 1024

_NAME = re.compile(r"(-1|[0-9]{1,18})-([0-9]{1,18})\.safetensors", re.ASCII)


class ClientStore:
    """Client states by number. They spill to `folder`, or to a temporary folder that goes with the store."""

    def __init__(self, folder: OwnFolder | Path | None = None, memory_bytes: int = MEMORY_BYTES) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = OwnFolder(folder) if isinstance(folder, Path) else folder
        self._memory_bytes = memory_bytes
        self._memory: OrderedDict[int, tuple[Tree, int]] = OrderedDict()
        self._held = 0
        self._files: dict[int, tuple[str, str]] = {}
        """The file of each client, and its digest."""
        self._dirty: set[int] = set()
        self._obsolete: list[str] = []
        self._needed_before: list[str] = []
        """Files that the last checkpoint does not name, but the one before does."""
        self._written = 0
        self._before_round: dict[int, Tree | tuple[str, str] | None] = {}
        """What clients with a new state in this round remembered before: a state in memory, in a file, or nothing."""

    def __len__(self) -> int:
        return len(self._files.keys() | self._memory.keys())

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
        if client not in self._before_round:
            if client in self._dirty and 2 * self._held > self._memory_bytes:
                self._write(client)  # Two states of many clients would not fit.
            self._before_round[client] = self._memory[client][0] if client in self._dirty else self._files.get(client)
        self._dirty.add(client)
        self._hold(client, tree.clone(state))

    def finish_round(self) -> None:
        """What clients remember now is what `undo_round` goes back to."""
        self._before_round.clear()

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

    def commit(self) -> dict[str, Any]:
        """Write states that are only in memory. The result (a file and its digest for each client) must be stored in
        the checkpoint."""
        for client in sorted(self._dirty):
            self._write(client)
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
        self._held = 0
        self._files = _files(index)
        now = {name for name, _ in self._files.values()}
        self._needed_before = sorted({name for name, _ in _files(before or {}).values()} - now)
        keep = now | set(self._needed_before)
        if self._folder is not None and self._folder.exists():
            for name in self._folder.names():
                if name not in keep and _NAME.match(name):  # Of ours, whole or in part.
                    self._folder.remove(name)
        self._written = max((_number(name) for name in keep), default=0)

    def close(self) -> None:
        if self._temporary:
            self._temporary.cleanup()

    def _read(self, client: int, files: Mapping[int, tuple[str, str]] | None = None) -> Tree:
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
        digest = storage.save(place / name, self._memory[client][0])
        if client in self._files:
            self._obsolete.append(self._files[client][0])
        self._files[client] = (name, digest)
        self._dirty.discard(client)


def _files(index: Mapping[str, Any]) -> dict[int, tuple[str, str]]:
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
