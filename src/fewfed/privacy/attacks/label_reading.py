"""Ways to read a client's labels out of what it sent. Each gives shares of classes, or only which there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.packet import Packet
from fewfed.phase import Phase, Role
from fewfed.privacy.attacks.imitated_sites import Played
from fewfed.tree import Tree

_LONGEST_AXIS = 8192
_PENALTY = 1e-3
_THRESHOLDS = 60


class Guess(NamedTuple):
    """What is thought of one client."""

    present: Tensor
    """Which classes it has."""
    shares: Tensor | None = None


def declared(phase: Phase, packet: Packet, classes: int) -> Guess | None:
    """From labels or counts that are sent as such; None where none are."""
    for name, upload in phase.uploads.items():
        value = packet.arrays.get(name)
        if not isinstance(value, Tensor):
            continue
        if upload.role is Role.LABELS and upload.rows:
            soft = value.dim() == 2 and value.shape[1] == classes
            if soft or value.dim() == 1:
                sums = value.double().sum(0) if soft else torch.bincount(value.long(), minlength=classes).double()
                return _guess(sums)
        if upload.role is Role.COUNTS and value.shape == (classes,):
            sums = value.double()
            only_flags = bool(((sums == 0) | (sums == 1)).all())
            return Guess(sums > 0) if only_flags else _guess(sums)
    return None


def _guess(sums: Tensor) -> Guess:
    """Of a client that sent no row of any class nothing is known: it may have all."""
    return Guess(sums > 0 if bool((sums > 0).any()) else torch.ones_like(sums, dtype=torch.bool), _normalised(sums))


def _normalised(sums: Tensor) -> Tensor:
    """As shares; all the same where there is nothing."""
    whole = sums.clamp(min=0).sum()
    return sums.clamp(min=0) / whole if float(whole) > 0 else torch.full_like(sums, 1 / len(sums))


@dataclass(frozen=True)
class Marks:
    """Slices of what is sent that move, or are not zero, exactly where a site has a class: found on sites of the
    attacker's own, whatever the entries are called."""

    numbers: tuple[Tensor, ...]
    """For each class the numbers of the slices that tell of it."""

    @classmethod
    def found(cls, phase: Phase, broadcast: Tree, sites: Sequence[Played], classes: int) -> Marks | None:
        """None where some class leaves no mark. A slice that fits by accident fits so many sites hardly ever."""
        moved = torch.stack([_moved(phase, broadcast, site.packet, classes) for site in sites])
        present = torch.stack([site.counts > 0 for site in sites])
        fits = [(moved == present[:, label : label + 1]).all(0).nonzero().flatten() for label in range(classes)]
        absent_somewhere = (~present).any(0) & present.any(0)
        return cls(tuple(fits)) if bool(absent_somewhere.all()) and all(map(len, fits)) else None

    def read(self, phase: Phase, broadcast: Tree, packet: Packet) -> Guess:
        moved = _moved(phase, broadcast, packet, len(self.numbers))
        return Guess(torch.stack([2 * moved[numbers].sum() > len(numbers) for numbers in self.numbers]))


def _moved(phase: Phase, broadcast: Tree, packet: Packet, classes: int) -> Tensor:
    """Of every slice, along every axis as long as the classes are many or longer, whether it differs from the broadcast
    and whether it differs from zero."""
    found = []
    for _, value, before in entries(phase, broadcast, packet):
        for differs in (value != 0, value != before) if before is not None else (value != 0,):
            for axis, length in enumerate(value.shape):
                if classes <= length <= _LONGEST_AXIS:
                    found.append(differs.movedim(axis, 0).reshape(length, -1).any(1))
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.bool)


def entries(phase: Phase, broadcast: Tree, packet: Packet) -> list[tuple[str, Tensor, Tensor | None]]:
    """Everything of fixed size in a packet, with what was broadcast in its place."""
    received = dict(tree.leaves(broadcast))
    found = []
    for name in phase.uploads:
        value: Any = packet.arrays.get(name)
        if value is None or phase.uploads[name].rows:
            continue
        for path, leaf in tree.leaves({name: value}):
            before = received.get(path)
            same = before is not None and before.shape == leaf.shape
            found.append((path, leaf, before.to(leaf.dtype) if same and before is not None else None))
    return found


@dataclass(frozen=True)
class Learned:
    """Shares of classes by a ridge regression on what entries along an axis of the classes look like, the same for
    every class, learnt from sites of the attacker's own."""

    weights: Tensor
    threshold: float

    @classmethod
    def fitted(cls, phase: Phase, broadcast: Tree, sites: Sequence[Played], classes: int) -> Learned | None:
        """None where nothing that is sent has such an axis."""
        looks = [_looks(phase, broadcast, site.packet, classes) for site in sites]
        if not looks or not looks[0].shape[1]:
            return None
        shares = torch.stack([_normalised(site.counts.double()) for site in sites])
        x, y = torch.cat(looks), shares.flatten()
        gram = x.T @ x / len(x) + _PENALTY * torch.eye(x.shape[1], dtype=x.dtype)
        weights = torch.linalg.solve(gram, x.T @ y / len(x))
        said = torch.stack([_normalised(look @ weights) for look in looks])
        return cls(weights, _threshold(said, shares > 0))

    def read(self, phase: Phase, broadcast: Tree, packet: Packet, classes: int) -> Guess:
        shares = _normalised(_looks(phase, broadcast, packet, classes) @ self.weights)
        return Guess(shares > self.threshold, shares)


def _threshold(said: Tensor, present: Tensor) -> float:
    """Above which a class is thought to be there, so that sets overlap most."""
    tried = torch.linspace(0.0, 0.3, _THRESHOLDS).tolist()
    best: float = max(tried, key=lambda cut: float(overlap(said > cut, present).mean()))
    return best


def overlap(guessed: Tensor, present: Tensor) -> Tensor:
    """The Jaccard index of sets, row by row."""
    return (guessed & present).sum(-1).double() / (guessed | present).sum(-1).clamp(min=1)


def _looks(phase: Phase, broadcast: Tree, packet: Packet, classes: int) -> Tensor:
    """(classes, columns): the mean and the size of what belongs to each class in every entry with such an axis, each
    brought to the same scale over classes, and a one."""
    columns: list[Tensor] = []
    for _, value, before in entries(phase, broadcast, packet):
        change = value.double() - (0.0 if before is None else before.double())
        for axis, length in enumerate(value.shape):
            if length == classes:
                flat = change.movedim(axis, 0).reshape(length, -1)
                columns += [_scaled(flat.mean(1)), _scaled(flat.square().mean(1).sqrt())]
    if not columns:
        return torch.zeros(classes, 0, dtype=torch.double)
    return torch.stack([*columns, torch.ones(classes, dtype=torch.double)], 1)


def _scaled(values: Tensor) -> Tensor:
    centred = values - values.mean()
    return centred / centred.square().mean().sqrt().clamp(min=1e-30)


Reading = Mapping[int, Guess]
"""A guess for each client."""
