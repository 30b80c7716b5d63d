"""Which numbers of a phase's uploads are summed under masks, in which order, and which cannot be.

A sum hides its terms, so what is declared as MEAN or SUM can be hidden: for a weighted mean a site gives weight · value
and its weight, and nobody learns either. What the server must see as it is cannot be: rows (CONCAT) and single values
(KEEP). Whole numbers of a MEAN upload are counters, of which the largest is taken: no sum gives it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fewfed import tree
from fewfed.deploy.secure.fixed_point import FixedPoint, OutOfRange, Vector
from fewfed.deploy.secure.wire import Writer
from fewfed.errors import ConfigError
from fewfed.phase import Combine, Upload
from fewfed.tree import Tree

Outline = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
"""Type and shape of every array, by its path."""
Rest = Literal["refuse", "clear"]
"""What becomes of uploads that cannot be hidden: the phase is refused, or they are sent as they are."""
MOST_NUMBERS = 1 << 28
"""The longest vector that is summed: two gigabytes."""


def outline_of(arrays: Tree) -> Outline:
    """The outline of what a site uploads."""
    return {path: (leaf.dtype, tuple(leaf.shape)) for path, leaf in tree.leaves(arrays)}


@dataclass(frozen=True)
class Limits:
    """How large numbers may be; what is larger is refused at the site."""

    value: float = 2.0**14
    """Of arrays."""
    weight: float = 2.0**16
    """Of a site in means."""


@dataclass(frozen=True)
class Place:
    """One array in the vector."""

    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    weighted: bool
    """Whether it is a mean's: the site's weight times its value."""
    numbers: FixedPoint

    @property
    def count(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Sums:
    """What the sum of several sites says."""

    sites: tuple[str, ...]
    weight: float
    """Of all sites together."""
    values: Mapping[str, Tensor]
    """By path: means and sums in double precision, or whole numbers."""
    errors: Mapping[str, float]
    """By path, by how much at most a value differs from the exact one."""


class NoSum(Exception):
    """A phase ended without a sum, and why."""

    def __init__(self, reason: str, blamed: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.blamed = blamed
        """Sites that caused it, where that is known."""


@dataclass(frozen=True)
class Layout:
    """The vector that every site of a phase writes: its arrays in the order of their paths, then its weight."""

    sites: int
    places: tuple[Place, ...]
    weight: FixedPoint
    clear: Mapping[str, str]
    """Paths that are sent as they are, and why."""
    order: tuple[str, ...] = ()
    """All paths as the outline has them: the order of arrays in packets."""

    @classmethod
    def of(
        cls, uploads: Mapping[str, Upload], outline: Outline, sites: int, limits: Limits, rest: Rest = "refuse"
    ) -> Layout:
        """It follows from what a phase declares. `ConfigError` where something cannot be hidden and may not be seen."""
        clear: dict[str, str] = {}
        places: list[Place] = []
        for path in sorted(outline):
            dtype, shape = outline[path]
            how = uploads[path.split("/")[0]].combine
            why = _cannot_hide(how, dtype)
            if why:
                clear[path] = why
            else:
                numbers = _numbers(path, how, dtype, sites, limits)
                places.append(Place(path, dtype, shape, how is Combine.MEAN, numbers))
        _refuse_seen(uploads, clear, rest)
        weight = FixedPoint.fitting(sites, limits.weight, 1.0, "a site's weight")
        layout = cls(sites, tuple(places), weight, clear, tuple(outline))
        if layout.length > MOST_NUMBERS:
            raise ConfigError(f"{layout.length} numbers are too many to sum under masks: expected {MOST_NUMBERS}")
        return layout

    @property
    def length(self) -> int:
        return sum(place.count for place in self.places) + 1

    @property
    def digest(self) -> bytes:
        """Sites and server compare it: all must write the same vector."""
        writer = Writer().number(self.sites).number(len(self.places))
        for place in self.places:
            writer.text(str(place.dtype)).piece(place.path.encode()).number(len(place.shape))
            for length in place.shape:
                writer.number(length)
            writer.number(place.weighted)
            _write_numbers(writer, place.numbers)
        _write_numbers(writer, self.weight)
        for path in sorted(self.clear):
            writer.piece(path.encode())
        return hashlib.sha256(b"fewfed secure layout\x00" + writer.done()).digest()

    def write(self, weight: float, arrays: Tree) -> Vector:
        """What a site adds to the sum, not masked yet; `OutOfRange` where it cannot be added."""
        found = dict(tree.leaves(arrays))
        if found.keys() != {place.path for place in self.places} | self.clear.keys():
            odd = sorted(found.keys() ^ ({place.path for place in self.places} | self.clear.keys()))
            raise OutOfRange(f"upload '{odd[0]:.100}' is unknown or missing")
        if not 0 < weight <= self.weight.bound:
            raise OutOfRange(
                f"the site's weight is {weight:g}: expected a number above 0 and at most {self.weight.bound:g}; "
                'weighting = "uniform" lets all sites weigh 1'
            )
        vector = np.zeros(self.length, np.int64)
        at = 0
        for place in self.places:
            value = found[place.path]
            if value.dtype != place.dtype or tuple(value.shape) != place.shape:
                raise OutOfRange(
                    f"upload '{place.path}' is {value.dtype} {tuple(value.shape)}: expected {place.dtype} {place.shape}"
                )
            factor = weight if place.weighted else 1.0
            place.numbers.write(value, factor, vector[at : at + place.count], f"upload '{place.path}'")
            at += place.count
        self.weight.write(torch.tensor([weight], dtype=torch.float64), 1.0, vector[at:], "the site's weight")
        return vector.view(np.uint64)

    def in_clear(self, arrays: Tree) -> dict[str, Tensor]:
        """The arrays that are sent as they are, by path."""
        return {path: leaf for path, leaf in tree.leaves(arrays) if path in self.clear}

    def read(self, total: Vector, sites: tuple[str, ...]) -> Sums:
        """What the sum of these sites' vectors says; `NoSum` if no sites that kept to the bounds can have made it."""
        whole = total.view(np.int64)
        weight = float(self.weight.read(whole[-1:])[0])
        if not (weight > 0 and self.weight.possible(whole[-1:], len(sites), len(sites))):
            raise NoSum(
                f"the sites' weights sum up to {weight:g}, which cannot be: a site did not keep to the protocol"
            )
        values: dict[str, Tensor] = {}
        errors: dict[str, float] = {}
        at = 0
        for place in self.places:
            part = whole[at : at + place.count]
            at += place.count
            share = weight + self.weight.error(len(sites)) if place.weighted else float(len(sites))
            if not place.numbers.possible(part, share, len(sites)):
                raise NoSum(
                    f"the sum of '{place.path}' cannot come from numbers within the declared bound: a site did "
                    "not keep to the protocol, and under masks nobody can say which"
                )
            values[place.path] = self._value(place, part, weight)
            errors[place.path] = self._error(place, len(sites), weight)
        return Sums(sites, weight, values, errors)

    def _value(self, place: Place, part: Any, weight: float) -> Tensor:
        if not place.dtype.is_floating_point:
            return torch.from_numpy(part.copy()).reshape(place.shape)
        total = place.numbers.read(part)
        return torch.from_numpy(total / weight if place.weighted else total).reshape(place.shape)

    def _error(self, place: Place, sites: int, weight: float) -> float:
        """Of a sum what rounding to whole numbers adds up to; of a mean S / T, with S and T each known to an error,
        (e_S + |S / T| · e_T) / T. Beside it some operations in double precision, of 2^-53 of the value each."""
        error, bound = place.numbers.error(sites), place.numbers.bound
        if not place.dtype.is_floating_point:
            return 0.0
        if not place.weighted:
            return error + sites * bound * 2.0**-52
        return (error + bound * self.weight.error(sites)) / weight + bound * 2.0**-50


def _cannot_hide(how: Combine, dtype: torch.dtype) -> str:
    if how is Combine.CONCAT:
        return "its rows are handed on one by one"
    if how is Combine.KEEP:
        return "the server reads each site's value by itself"
    if how is Combine.MEAN and not dtype.is_floating_point:
        return "it is a counter, of which the largest is taken, and no sum gives that"
    if dtype is torch.bool:
        return "it is yes or no, which has no sum"
    return ""


def _numbers(path: str, how: Combine, dtype: torch.dtype, sites: int, limits: Limits) -> FixedPoint:
    if not dtype.is_floating_point:
        return FixedPoint.whole(sites, limits.value, torch.iinfo(dtype).max)
    factor = limits.weight if how is Combine.MEAN else 1.0
    return FixedPoint.fitting(sites, limits.value, factor, f"upload '{path}'")


def _refuse_seen(uploads: Mapping[str, Upload], clear: Mapping[str, str], rest: Rest) -> None:
    for path, why in clear.items():
        # Whoever reads single values weighs them by single weights, which are hidden.
        kept = uploads[path.split("/")[0]].combine is Combine.KEEP
        if kept or rest == "refuse":
            do = "use a method without it" + ("" if kept else ", or allow what cannot be hidden to be sent as it is")
            raise ConfigError(f"upload '{path}' cannot be hidden in a sum, because {why}: {do}")


def _write_numbers(writer: Writer, numbers: FixedPoint) -> None:
    writer.number(numbers.bits).text(float(numbers.bound).hex()).text(float(numbers.factor).hex())
