"""Whose the rows in the server's tree are, so that those of a site that withdraws can be taken out again.

No method says where it keeps rows. It is found out by asking `absorb` twice: once with the rows that came, and once
with every row doubled and replaced by a number that stands for its client. What is then twice as long counts rows, what
holds such numbers is rows, and what has changed otherwise was computed from rows of several clients, which nobody can
take apart again.

Rows may come as codes: several arrays for each, of which some have no room for such a number. These are zero then, and
a row that the method makes of them is its client's where it has that number and zeros, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine import asking
from fewfed.errors import FewfedError, RunError
from fewfed.method import Combined, Method
from fewfed.phase import Phase
from fewfed.tree import Tree

_FIRST = 1_000_003
"""The number of client 0. Classes and ages are smaller; in single precision numbers are exact up to 2**24."""
_MOST_CLIENTS = 2**24 - _FIRST


class Provenance:
    """The owner of every row in the server's tree."""

    def __init__(self) -> None:
        self._owners: dict[str, Tensor] = {}
        self._beside: set[str] = set()
        """Entries with a number for each row that is no part of the row: its age, say."""
        self._mixed = ""
        """Why some rows cannot be told apart any more; empty where all can."""

    @classmethod
    def unknown(cls) -> Provenance:
        """Of a server that has taken rows in while nobody wrote down whose they are."""
        made = cls()
        made._mixed = "it was not written down whose rows are where while the run had no policy"
        return made

    def follow(
        self,
        method: Method,
        phase: Phase,
        before: Tree,
        combined: Combined,
        sent: Mapping[str, Sequence[int]],
        after: Tree,
    ) -> None:
        """A phase was absorbed. `sent`: of every upload of rows, how many each client of `combined` sent."""
        if not (sent or self._owners) or self._mixed:
            return
        doubled: Tree = {}
        try:
            marked = combined._replace(values=_marked(combined, sent))
            doubled = asking.absorb(method, phase, self._doubled(before), marked)
        except FewfedError as error:
            self._mixed = f"phase '{phase.name}' computes with rows as it takes them in ({error})"
            return
        self._compare(after, dict(tree.leaves(doubled)))

    def without(self, server: Tree, clients: frozenset[int]) -> tuple[Tree, int]:
        """The server's tree without the rows of some clients, and how many rows that were."""
        if not clients:
            return server, 0
        if self._mixed:
            whose = ", ".join(map(str, sorted(clients)))
            raise RunError(
                f"rows of clients {whose} were withdrawn, but cannot be told from others any more, "
                f"since {self._mixed}: expected a method that keeps rows as they were sent; start a new run"
            )
        leaves, removed = dict(tree.leaves(server)), 0
        for path, owners in self._owners.items():
            kept = ~torch.isin(owners, torch.tensor(sorted(clients)))
            if not bool(kept.all()):
                leaves[path] = leaves[path][kept.to(leaves[path].device)]
                self._owners[path] = owners[kept]
                removed = max(removed, int((~kept).sum()))
        return (tree.from_leaves(leaves, tree.hollows(server)) if removed else server), removed

    def as_json(self) -> dict[str, Any]:
        owners = {path: each.tolist() for path, each in self._owners.items()}
        return {"owners": owners, "beside": sorted(self._beside), "mixed": self._mixed}

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Provenance:
        made = cls()
        try:
            made._owners = {
                str(path): torch.tensor(each, dtype=torch.long) for path, each in recorded["owners"].items()
            }
            made._beside, made._mixed = {str(path) for path in recorded["beside"]}, str(recorded["mixed"])
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise RunError(
                f"the checkpoint's list of whose rows are where is damaged ({type(error).__name__})"
            ) from error
        return made

    def _doubled(self, server: Tree) -> Tree:
        leaves = dict(tree.leaves(server))
        for path, owners in self._owners.items():
            leaf = leaves[path]
            values = leaf if path in self._beside else _numbers(owners, leaf)
            leaves[path] = values.repeat_interleave(2, 0)
        return tree.from_leaves(leaves, tree.hollows(server))

    def _compare(self, after: Tree, doubled: Mapping[str, Tensor]) -> None:
        self._owners, self._beside = {}, set()
        waiting: list[str] = []
        for path, leaf in tree.leaves(after):
            twin = doubled.get(path)
            if twin is leaf or (twin is not None and twin.shape == leaf.shape and torch.equal(twin, leaf)):
                continue
            owners = None if twin is None else _owners_in(leaf, twin)
            if owners is None:
                self._mixed = f"'{path}' on the server is computed from rows of several clients"
                return
            if len(owners):
                self._owners[path] = owners
            elif len(leaf):
                waiting.append(path)
        for path in waiting:
            self._place_beside(path, len(dict(tree.leaves(after))[path]))

    def _place_beside(self, path: str, rows: int) -> None:
        """An entry with a number for each row belongs to the rows that are kept in the same place."""
        folder = path.rpartition("/")[0]
        for other, owners in list(self._owners.items()):
            if other not in self._beside and other.rpartition("/")[0] == folder and len(owners) == rows:
                self._owners[path] = owners
                self._beside.add(path)
                return
        self._mixed = f"'{path}' on the server has a number for each of some rows, but not beside them"


def _owners_in(leaf: Tensor, twin: Tensor) -> Tensor | None:
    """The client of each row; an empty tensor where the entry holds something else for each row; None where it is no
    entry by rows."""
    if not leaf.dim() or twin.dim() != leaf.dim() or twin.shape != (2 * len(leaf), *leaf.shape[1:]):
        return None
    even, odd = twin[::2], twin[1::2]
    if not torch.equal(even, odd):
        return None
    if torch.equal(even, leaf):
        return torch.zeros(0, dtype=torch.long)
    flat = even.flatten(1) if even.dim() > 1 else even.unsqueeze(1)
    if not flat.shape[1] or not flat.shape[0]:
        return None
    number = flat.amax(1, keepdim=True)
    if not bool((number >= _FIRST).all()) or not bool(((flat == number) | (flat == 0)).all()):
        return None
    return number[:, 0].long().cpu() - _FIRST


def _marked(combined: Combined, sent: Mapping[str, Sequence[int]]) -> Tree:
    clients = torch.tensor(combined.clients)
    values = dict(combined.values)
    for name, counts in sent.items():
        owners = clients.repeat_interleave(torch.tensor(counts))
        values[name] = _by_leaf(values[name], owners)
    return values


def _by_leaf(value: Any, owners: Tensor) -> Any:
    if isinstance(value, Tensor):
        return _numbers(owners, value).repeat_interleave(2, 0)
    parts = [leaf for _, leaf in tree.leaves(value)]
    if all(map(_lacks_room, parts)):
        return {name: _by_leaf(part, owners) for name, part in value.items()}  # Raises, and says why.
    return tree.map(lambda leaf: _part(owners, leaf).repeat_interleave(2, 0), value)


def _part(owners: Tensor, like: Tensor) -> Tensor:
    """One of several arrays that stand for rows: with the client's number, or zero where there is no room for it."""
    return torch.zeros_like(like) if _lacks_room(like) else _numbers(owners, like)


def _lacks_room(like: Tensor) -> str:
    """What is missing where rows cannot hold the number of a client; empty where they can."""
    if like.is_floating_point():
        return "at least single precision" if torch.finfo(like.dtype).eps > torch.finfo(torch.float32).eps else ""
    is_small = like.dtype is torch.bool or torch.iinfo(like.dtype).max < 2**24
    return "larger whole numbers" if is_small else ""


def _numbers(owners: Tensor, like: Tensor) -> Tensor:
    """Rows like some others, filled with the number that stands for the client of each."""
    if len(owners) and int(owners.max()) >= _MOST_CLIENTS:
        raise RunError(f"client {int(owners.max())} has too high a number: expected at most {_MOST_CLIENTS} clients")
    if missing := _lacks_room(like):
        raise RunError(f"rows of {like.dtype} hold no number of a client: expected {missing}")
    shape = (-1, *[1] * (like.dim() - 1))
    return (owners + _FIRST).to(like).reshape(shape).expand(len(owners), *like.shape[1:]).clone()
