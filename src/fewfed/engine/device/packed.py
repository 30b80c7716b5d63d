"""A turn's draws side by side: a matrix for each type of number, a row a step, to travel and be picked at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.device.watch import CannotCapture
from fewfed.tree import Tree

Kind = tuple[torch.dtype, bool]
"""Type of number, and whether it was drawn on the device (rather than by the host's plan)."""


@dataclass(frozen=True)
class Place:
    """Where one leaf of a step's draws lies in its matrix."""

    path: str
    kind: Kind
    first: int
    shape: tuple[int, ...]

    @property
    def last(self) -> int:
        return self.first + math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Where all leaves lie. Equal layouts can share a captured step."""

    places: tuple[Place, ...]
    hollows: tuple[str, ...]
    widths: tuple[tuple[Kind, int], ...]

    @classmethod
    def of(cls, draw: Tree) -> Layout:
        places: list[Place] = []
        widths: dict[Kind, int] = {}
        for path, leaf in tree.leaves(draw):
            kind = (leaf.dtype, leaf.device.type != "cpu")
            first = widths.get(kind, 0)
            places.append(Place(path, kind, first, tuple(leaf.shape)))
            widths[kind] = first + math.prod(leaf.shape)
        return cls(tuple(places), tuple(tree.hollows(draw)), tuple(widths.items()))

    def blank(self, lead: tuple[int, ...], device: torch.device) -> dict[Kind, Tensor]:
        """Matrices of nothing, with some axes before the packed one."""
        return {kind: torch.zeros((*lead, width), dtype=kind[0], device=device) for kind, width in self.widths}

    def room(self, steps: int, pinned: bool, like: Sequence[Tensor]) -> dict[Kind, Tensor]:
        """Empty matrices where the leaves they are for live."""
        device = next((leaf.device for leaf in like if leaf.device.type != "cpu"), torch.device("cpu"))
        return {
            kind: torch.empty((steps, width), dtype=kind[0], device=device)
            if kind[1]
            else torch.empty((steps, width), dtype=kind[0], pin_memory=pinned)
            for kind, width in self.widths
        }

    def unpack(self, rows: dict[Kind, Tensor]) -> Tree:
        """The draws of a step as views of its rows; axes before the last stay in front."""
        flat = {
            place.path: rows[place.kind]
            .narrow(-1, place.first, place.last - place.first)
            .reshape((*rows[place.kind].shape[:-1], *place.shape))
            for place in self.places
        }
        return tree.from_leaves(flat, self.hollows)


@dataclass(frozen=True)
class Packed:
    """The draws of all steps of one turn."""

    layout: Layout
    matrices: dict[Kind, Tensor]

    @classmethod
    def of(cls, draws: Sequence[Tree], pinned: bool) -> Packed:
        """Pack a draw a step; `pinned` memory lets the copy to the device run while the host goes on."""
        layout = Layout.of(draws[0])
        flat = [[leaf for _, leaf in tree.leaves(draw)] for draw in draws]
        shapes = [place.shape for place in layout.places]
        if any([tuple(leaf.shape) for leaf in leaves] != shapes for leaves in flat):
            raise CannotCapture("its draws differ in size from step to step")
        matrices = layout.room(len(draws), pinned, flat[0])
        views = {kind: _writable(matrix) for kind, matrix in matrices.items()}
        for position, place in enumerate(layout.places):
            view, columns = views[place.kind], slice(place.first, place.last)
            for step, leaves in enumerate(flat):
                view[step, columns] = _readable(leaves[position].reshape(-1))
        return cls(layout, matrices)

    @classmethod
    def of_stack(cls, draws: Tree, steps: int, pinned: bool) -> Packed:
        """Pack draws whose leaves have the steps on their first axis."""
        leaves = [leaf for _, leaf in tree.leaves(draws)]
        layout = Layout.of(tree.map(lambda leaf: leaf[0], draws))
        matrices = layout.room(steps, pinned, leaves)
        for leaf, place in zip(leaves, layout.places, strict=True):
            matrices[place.kind][:, place.first : place.last] = leaf.reshape(steps, -1)
        return cls(layout, matrices)

    def parts(self, lengths: Sequence[int]) -> list[Packed]:
        """Turns that were packed one after another."""
        cut = {kind: torch.split(matrix, list(lengths)) for kind, matrix in self.matrices.items()}
        return [
            Packed(self.layout, {kind: rows[position] for kind, rows in cut.items()})
            for position in range(len(lengths))
        ]


def _writable(matrix: Tensor) -> Any:
    # Thousands of small copies: NumPy's cost a third of torch's.
    return matrix.numpy() if matrix.device.type == "cpu" else matrix


def _readable(leaf: Tensor) -> Any:
    return leaf.numpy() if leaf.device.type == "cpu" else leaf
