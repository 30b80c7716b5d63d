"""What clients remember between participations: a bounded amount in memory, the rest on disk.

A new state is written to a new file. The old file is deleted only after the next checkpoint, which no longer needs it.
So a run killed at any moment finds all states that its last checkpoint names.
"""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

from fewfed import tree
from fewfed.engine import storage
from fewfed.tree import Tree

MEMORY_BYTES = 256 * 1024 * 1024


class ClientStore:
    """Client states by number. They spill to `folder`, or to a temporary folder that goes with the store."""

    def __init__(self, folder: Path | None = None, memory_bytes: int = MEMORY_BYTES) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="fewfed-clients-") if folder is None else None
        self._folder = Path(self._temporary.name) if self._temporary else Path(folder or ".")
        self._memory_bytes = memory_bytes
        self._memory: OrderedDict[int, tuple[Tree, int]] = OrderedDict()
        self._held = 0
        self._files: dict[int, str] = {}
        self._dirty: set[int] = set()
        self._obsolete: list[str] = []
        self._written = 0

    def __len__(self) -> int:
        return len(self._files.keys() | self._memory.keys())

    def get(self, client: int) -> Tree | None:
        """The client's state, or None if it has never taken part."""
        if client in self._memory:
            self._memory.move_to_end(client)
            return self._memory[client][0]
        if client in self._files:
            state, _ = storage.load(self._folder / self._files[client])
            self._hold(client, state)
            return state
        return None

    def put(self, client: int, state: Tree) -> None:
        """Remember a copy of a state."""
        self._dirty.add(client)
        self._hold(client, tree.clone(state))

    def commit(self) -> dict[str, str]:
        """Write states that are only in memory. The result (client to file) must be stored in the checkpoint."""
        for client in sorted(self._dirty):
            self._write(client)
        return {str(client): name for client, name in sorted(self._files.items())}

    def forget_obsolete(self) -> None:
        """Delete files that the checkpoint just written does not name."""
        for name in self._obsolete:
            (self._folder / name).unlink(missing_ok=True)
        self._obsolete.clear()

    def restore(self, index: Mapping[str, str]) -> None:
        """Go back to the states that a checkpoint names; files of later rounds are deleted."""
        self._memory.clear()
        self._dirty.clear()
        self._obsolete.clear()
        self._held = 0
        self._files = {int(client): name for client, name in index.items()}
        keep = set(self._files.values())
        if self._folder.is_dir():
            for file in self._folder.iterdir():
                if file.name not in keep:
                    file.unlink()
        self._written = max((int(name.split("-")[1].split(".")[0]) for name in keep), default=0)

    def close(self) -> None:
        if self._temporary:
            self._temporary.cleanup()

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
        self._folder.mkdir(parents=True, exist_ok=True)
        self._written += 1
        name = f"{client}-{self._written}.safetensors"
        storage.save(self._folder / name, self._memory[client][0])
        if client in self._files:
            self._obsolete.append(self._files[client])
        self._files[client] = name
        self._dirty.discard(client)
