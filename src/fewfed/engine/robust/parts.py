"""What a client changed: its uploads measured from what the server broadcast.

An upload is seldom a change by itself. A model comes whole, so its change is what it differs by from the model that was
broadcast under the same name. Numbers that are trained and numbers that a network keeps beside them (BatchNorm's means
and variances) are measured apart: the second are much larger and differ from site to site by nature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.packet import Packet
from fewfed.phase import Combine, Phase, Role, Upload
from fewfed.tree import Tree

CHANGES = frozenset({Role.MODEL, Role.UPDATE, Role.CONTROL, Role.GENERATOR})
"""Roles of what training changes: where all clients are honest, theirs resemble each other, whatever their rows are."""
_WHOLE = frozenset({Role.MODEL, Role.GENERATOR})
"""Roles that are no change by themselves, only by what they differ by from what was broadcast."""
_BUFFERS = "buffers"
"""The part of a model's tree that is not trained (`fewfed.network`)."""


@dataclass(frozen=True)
class Part:
    """Numbers of one upload that are measured together."""

    upload: str
    paths: tuple[str, ...]
    bases: Mapping[str, Tensor] = field(default_factory=dict)
    """By path: what was broadcast in the place of a number; missing where it is a change by itself."""
    has_length: bool = True
    """Whether it is known how far a client went: not so of a model that nobody broadcast."""

    def change(self, leaves: Mapping[str, Tensor], path: str) -> Tensor:
        """One array of a client's change, in double precision."""
        leaf = leaves[path].detach().double()
        return leaf - self.bases[path].to(leaf) if path in self.bases else leaf

    def length(self, leaves: Mapping[str, Tensor]) -> float:
        """How far a client went."""
        squares = [self.change(leaves, path).square().sum() for path in self.paths]
        return math.sqrt(float(torch.stack(squares).sum()))


@dataclass(frozen=True)
class Gathered:
    """The packets of one phase, all at hand, in the order of their clients' numbers; and what was broadcast."""

    phase: Phase
    shared: Tree
    packets: tuple[Packet, ...]

    def without(self, clients: frozenset[int]) -> Gathered:
        kept = tuple(packet for packet in self.packets if packet.sender not in clients)
        return Gathered(self.phase, self.shared, kept)

    def leaves(self) -> list[dict[str, Tensor]]:
        """The arrays of every packet, by path."""
        return [dict(tree.leaves(packet.arrays)) for packet in self.packets]

    def parts(self, uploads: Sequence[str]) -> list[Part]:
        """What is measured of some uploads."""
        return parts_of(self.phase, uploads, self.packets[0].arrays, self.shared) if self.packets else []


def is_measured(upload: Upload) -> bool:
    """Whether it can be said how far a client went by this upload.

    Sums of statistics, prototypes and counts depend on which classes a client has, and how many rows: a long one is no
    odd one. Rows are judged one by one (`fewfed.engine.robust.rows`).
    """
    if upload.rows or upload.combine is Combine.CONCAT:
        return False
    return upload.combine is Combine.MEAN or upload.role in CHANGES


def parts_of(phase: Phase, uploads: Sequence[str], arrays: Tree, shared: Tree) -> list[Part]:
    """The parts of some uploads of a phase: for each the numbers that are trained, and those kept beside them."""
    known = {path: leaf for path, leaf in tree.leaves(shared) if leaf.is_floating_point()}
    found = []
    for name in uploads:
        role = phase.uploads[name].role
        numbers = {path: leaf for path, leaf in tree.leaves({name: arrays[name]}) if leaf.is_floating_point()}
        for beside in (False, True):
            paths = tuple(path for path in numbers if is_beside(path) == beside)
            if not paths:
                continue
            bases = {path: base for path in paths if (base := _base(path, numbers[path], role, known)) is not None}
            found.append(Part(name, paths, bases, role not in _WHOLE or len(bases) == len(paths)))
    return found


def is_beside(path: str) -> bool:
    """Whether numbers are kept beside those that are trained."""
    return _BUFFERS in path.split("/")[:-1]


def _base(path: str, leaf: Tensor, role: Role, known: Mapping[str, Tensor]) -> Tensor | None:
    """What was broadcast in the place of an array: under the same name, or, where a part of a model has a name of its
    own, the only array that is called the same within another entry."""
    if role is Role.UPDATE:
        return None
    base = known.get(path)
    if base is None and role in _WHOLE:
        inside = path.partition("/")[2]
        alike = [other for name, other in known.items() if inside and name.partition("/")[2] == inside]
        base = alike[0] if len(alike) == 1 else None
    return base if base is not None and base.shape == leaf.shape else None
