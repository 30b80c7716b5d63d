"""Which entries of the broadcast clients already hold, so that bytes are counted once.

A method broadcasts the same names in every round, but a pool of rows that was collected once need not be sent again.
One rule for all methods: an entry counts as sent to a client unless the client received it before and its content has
not changed since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.threads import one_thread
from fewfed.errors import RunError
from fewfed.tree import Tree


@dataclass
class _Entry:
    """One name of the broadcast in its present content, and who holds it."""

    content: Any
    """A tensor or a tree; None after resuming, when only the digest is known."""
    size: int
    digest: str = ""
    holders: set[int] = field(default_factory=set)


class Holdings:
    """Which clients hold which entries of the broadcast in their present content."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._announced: tuple[str, ...] = ()
        self._replaced: list[tuple[str, _Entry | None]] = []
        self._delivered: list[tuple[_Entry, int]] = []
        """What happened in this round, in its order."""

    def announce(self, shared: Tree) -> None:
        """Set the next broadcast. Entries whose content has changed are held by nobody any more."""
        with one_thread():
            for name, content in shared.items():
                known = self._entries.get(name)
                if known is None or not _is_same(known, content):
                    self._replaced.append((name, known))
                    self._entries[name] = _Entry(content, tree.nbytes({name: content}))
                else:
                    known.content = content
        self._announced = tuple(shared)

    def missing(self, client: int) -> list[str]:
        """The entries of the announced broadcast that a client does not hold."""
        return [name for name in self._announced if client not in self._entries[name].holders]

    def deliver(self, client: int) -> int:
        """Record that a client receives the announced broadcast; returns the bytes it did not hold yet."""
        sent = 0
        for name in self.missing(client):
            entry = self._entries[name]
            self._delivered.append((entry, client))
            entry.holders.add(client)
            sent += entry.size
        return sent

    def finish_round(self) -> None:
        """A round has ended: this is what `undo_round` goes back to."""
        self._replaced.clear()
        self._delivered.clear()

    def undo_round(self) -> None:
        """The run ends in the middle of a round: what was sent in it counts as not sent."""
        for entry, client in self._delivered:
            entry.holders.discard(client)
        for name, before in reversed(self._replaced):
            if before is None:
                self._entries.pop(name, None)
            else:
                self._entries[name] = before
        self.finish_round()

    def as_json(self) -> dict[str, Any]:
        """For a checkpoint: a digest of every entry's content, and who holds it."""
        for entry in self._entries.values():
            entry.digest = entry.digest or _digest(entry.content)
        return {
            name: {"digest": entry.digest, "size": entry.size, "holders": sorted(entry.holders)}
            for name, entry in self._entries.items()
        }

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Holdings:
        made = cls()
        try:
            for name, entry in recorded.items():
                holders = set(map(int, entry["holders"]))
                made._entries[name] = _Entry(None, int(entry["size"]), str(entry["digest"]), holders)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"the checkpoint's list of what clients hold is damaged ({type(error).__name__})") from error
        return made


def _is_same(known: _Entry, content: Any) -> bool:
    if known.content is None:
        return known.digest == _digest(content)
    ours, theirs = _leaves(known.content), _leaves(content)
    return ours.keys() == theirs.keys() and all(_equal(ours[path], theirs[path]) for path in ours)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.device == b.device and torch.equal(a, b))


def _leaves(content: Any) -> dict[str, Tensor]:
    return {"": content} if isinstance(content, Tensor) else dict(tree.leaves(content))


def _digest(content: Any) -> str:
    found = hashlib.sha256()
    for path, leaf in sorted(_leaves(content).items()):
        found.update(f"{path} {leaf.dtype} {tuple(leaf.shape)}".encode())
        found.update(tree.content(leaf))
    return found.hexdigest()
