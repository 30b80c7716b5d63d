"""A copy of the broadcast at fixed addresses, with spare room for buffers whose length changes from round to round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed import tree
from fewfed.tree import Tree


@dataclass(frozen=True)
class Board:
    """A static copy of a broadcast. Spare rows of a buffer hold NaN, so that a loss that reads them becomes NaN."""

    static: Tree
    padded: bool

    @classmethod
    def for_(cls, shared: Tree, before: Board | None, exact: bool) -> Board:
        """Memory for a broadcast. A leaf whose length has changed gets room to grow, unless `exact`."""
        old = dict(tree.leaves(before.static)) if before is not None else {}
        flat: dict[str, Tensor] = {}
        padded = False
        for path, leaf in tree.leaves(shared):
            if not exact and path in old and _grew(old[path], leaf):
                rows = -(-(len(leaf) * 5 // 4 + 1) // 64) * 64
                flat[path] = _blank(leaf, rows)
                padded = True
            else:
                flat[path] = torch.empty_like(leaf)
        return cls(tree.from_leaves(flat, tree.hollows(shared)), padded)

    def fits(self, shared: Tree) -> bool:
        """Whether a broadcast has the same parts and each fits its place."""
        mine, theirs = dict(tree.leaves(self.static)), dict(tree.leaves(shared))
        return mine.keys() == theirs.keys() and all(
            leaf.shape == mine[path].shape or (self.padded and _grew(mine[path], leaf) and len(leaf) <= len(mine[path]))
            for path, leaf in theirs.items()
        )

    def write(self, shared: Tree) -> None:
        """Copy a broadcast that fits."""
        mine = dict(tree.leaves(self.static))
        for path, leaf in tree.leaves(shared):
            target = mine[path]
            (target if target.shape == leaf.shape else target[: len(leaf)]).copy_(leaf)


def _grew(old: Tensor, new: Tensor) -> bool:
    return old.dim() > 0 and old.dtype == new.dtype and old.shape[1:] == new.shape[1:] and len(old) != len(new)


def _blank(leaf: Tensor, rows: int) -> Tensor:
    shape = (rows, *leaf.shape[1:])
    fill = float("nan") if leaf.is_floating_point() else 0
    return torch.full(shape, fill, dtype=leaf.dtype, device=leaf.device)
