"""The draws of a turn as matrices: one for each type of number, one row a step, so that few copies are needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.executors.cuda.watch import CannotCapture
from fewfed.tree import Tree


class DrawsDiffer(CannotCapture):
    """Steps with batches of one size draw numbers of several."""


Kind = tuple[torch.dtype, bool]
"""Type of number, and whether it was drawn on the device (rather than by the host's plan)."""


@dataclass(frozen=True)
class Place:
    """The position of one leaf of a step's draws in its matrix."""

    path: str
    kind: Kind
    first: int
    shape: tuple[int, ...]

    @property
    def last(self) -> int:
        return self.first + math.prod(self.shape)


@dataclass(frozen=True)
class Places:
    """The positions of all leaves. Clients whose steps draw alike can share a recorded step."""

    leaves: tuple[Place, ...]
    hollows: tuple[str, ...]
    widths: tuple[tuple[Kind, int], ...]

    @classmethod
    def of(cls, drawn: Tree) -> Places:
        places: list[Place] = []
        widths: dict[Kind, int] = {}
        for path, leaf in tree.leaves(drawn):
            kind = (leaf.dtype, leaf.device.type != "cpu")
            first = widths.get(kind, 0)
            places.append(Place(path, kind, first, tuple(leaf.shape)))
            widths[kind] = first + math.prod(leaf.shape)
        return cls(tuple(places), tuple(tree.hollows(drawn)), tuple(widths.items()))

    def blank(self, lead: tuple[int, ...], device: torch.device) -> dict[Kind, Tensor]:
        """Matrices of zeros, with some axes before the packed one."""
        return {kind: torch.zeros((*lead, width), dtype=kind[0], device=device) for kind, width in self.widths}

    def room(self, steps: int, pinned: bool, like: Sequence[Tensor]) -> dict[Kind, Tensor]:
        """Empty matrices on the devices of the leaves they are for."""
        device = next((leaf.device for leaf in like if leaf.device.type != "cpu"), torch.device("cpu"))
        return {
            kind: torch.empty((steps, width), dtype=kind[0], device=device)
            if kind[1]
            else torch.empty((steps, width), dtype=kind[0], pin_memory=pinned)
            for kind, width in self.widths
        }

    def unpack(self, rows: dict[Kind, Tensor]) -> Tree:
        """What a step drew, as views of its rows; axes before the last stay in front."""
        flat = {
            place.path: rows[place.kind]
            .narrow(-1, place.first, place.last - place.first)
            .reshape((*rows[place.kind].shape[:-1], *place.shape))
            for place in self.leaves
        }
        return tree.from_leaves(flat, self.hollows)


@dataclass(frozen=True)
class Packed:
    """What all steps of one turn drew."""

    places: Places
    matrices: dict[Kind, Tensor]

    @classmethod
    def of(cls, drawn: Sequence[Tree], pinned: bool) -> Packed:
        """Pack what each step drew; `pinned` memory lets the copy to the device run while the host goes on."""
        places = Places.of(drawn[0])
        flat = [[leaf for _, leaf in tree.leaves(step)] for step in drawn]
        shapes = [place.shape for place in places.leaves]
        if any([tuple(leaf.shape) for leaf in leaves] != shapes for leaves in flat):
            raise DrawsDiffer("what it draws differs in size from step to step")
        matrices = places.room(len(drawn), pinned, flat[0])
        views = {kind: _writable(matrix) for kind, matrix in matrices.items()}
        for position, place in enumerate(places.leaves):
            view, columns = views[place.kind], slice(place.first, place.last)
            for step, leaves in enumerate(flat):
                view[step, columns] = _readable(leaves[position].reshape(-1))
        return cls(places, matrices)

    @classmethod
    def of_stack(cls, drawn: Tree, steps: int, pinned: bool) -> Packed:
        """Pack what was drawn for all steps at once: the steps are the first axis."""
        leaves = [leaf for _, leaf in tree.leaves(drawn)]
        places = Places.of(tree.map(lambda leaf: leaf[0], drawn))
        matrices = places.room(steps, pinned, leaves)
        for leaf, place in zip(leaves, places.leaves, strict=True):
            matrices[place.kind][:, place.first : place.last] = leaf.reshape(steps, -1)
        return cls(places, matrices)

    def parts(self, lengths: Sequence[int]) -> list[Packed]:
        """Turns that were packed one after another."""
        cut = {kind: torch.split(matrix, list(lengths)) for kind, matrix in self.matrices.items()}
        return [
            Packed(self.places, {kind: rows[position] for kind, rows in cut.items()})
            for position in range(len(lengths))
        ]


def _writable(matrix: Tensor) -> Any:
    # There are thousands of small copies, and NumPy needs a third of torch's time for them.
    return matrix.numpy() if matrix.device.type == "cpu" else matrix


def _readable(leaf: Tensor) -> Any:
    return leaf.numpy() if leaf.device.type == "cpu" else leaf
