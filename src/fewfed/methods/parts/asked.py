"""A phase in which clients are only asked for something."""

from __future__ import annotations

from fewfed.method import Context, M, Part
from fewfed.tree import Tree


class Asked(Part[M]):
    """Nothing is sent and nothing is trained: `end` says what a client answers."""

    def broadcast(self, server: Tree) -> Tree:
        return {}

    def begin(self, ctx: Context) -> Tree:
        return {}
