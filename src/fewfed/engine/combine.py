"""Combines uploads as their phase declares. Packets are added one by one, so that a cohort's models are never all in
memory.

Clients are divided into 16 shards by their numbers. Sums are taken in float64: first over the clients of each shard,
in the order of their numbers, then over the shards. A whole shard can therefore be summed by another process, and
merging it gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.packet import Packet
from fewfed.engine.threads import one_thread
from fewfed.method import Combined
from fewfed.phase import Combine, Phase
from fewfed.tree import Tree

SHARDS = 16
"""Into how many shards clients are divided, however many clients there are."""

_PIECE = 1 << 17
"""Numbers added at once: a megabyte in double precision."""


def shard_of(client: int, clients: int) -> int:
    """The shard of a client: shards are ranges of client numbers."""
    return max(0, client) * SHARDS // max(clients, 1)


class Combiner:
    """Folds the packets of one phase. Combiners of different shards can be merged."""

    def __init__(self, phase: Phase, clients: int) -> None:
        """`clients`: how many there are in the whole federation."""
        self._phase = phase
        self._clients_in_all = clients
        self._shard = 0
        self._open: dict[str, Any] = {}
        """Sums over the present shard."""
        self._totals: dict[str, Any] = {}
        """Sums over the shards before it."""
        self._kept: dict[str, Any] = {}
        """Uploads that are not summed: rows in the order of clients, and values by client."""
        self._like: dict[str, Any] = {}
        self._clients: list[int] = []
        self._weights: list[float] = []
        self.bytes = 0
        self.relayed = 0
        """Bytes of what is only handed on to another client."""

    def add(self, packet: Packet) -> None:
        """Fold in one accepted packet. Its arrays may be overwritten afterwards."""
        self._enter(packet)
        shard = shard_of(packet.sender, self._clients_in_all)
        with one_thread():
            if shard != self._shard:
                self._close_shard()
                self._shard = shard
            for name, upload in self._phase.uploads.items():
                self._fold(name, upload.combine, packet)

    def add_block(self, packets: Sequence[Packet]) -> None:
        """Add several accepted packets at once: one weighted sum for each leaf instead of one addition for each client.

        For a GPU. The sums agree with those of `add` to rounding.
        """
        for packet in packets:
            self._enter(packet)
        for name, upload in self._phase.uploads.items() if packets else ():
            how = upload.combine
            if how.seen_raw:
                for packet in packets:
                    self._fold(name, how, packet)
            else:
                factors = [packet.weight if how is Combine.MEAN else 1.0 for packet in packets]
                total = _map(partial(_weighted_sum, factors, how), *(packet.arrays[name] for packet in packets))
                self._remember_type(name, packets[0].arrays[name])
                self._add_total(name, total, how)

    def merge(self, other: Combiner) -> None:
        """Add what another combiner holds, whose clients all have higher numbers. One whole shard keeps the bits."""
        self._close_shard()
        other._close_shard()
        for name, upload in self._phase.uploads.items():
            if upload.combine is Combine.CONCAT and name in other._kept:
                self._kept.setdefault(name, []).extend(other._kept[name])
            elif upload.combine is Combine.KEEP and name in other._kept:
                self._kept.setdefault(name, {}).update(other._kept[name])
            elif name in other._totals:
                self._like.setdefault(name, other._like[name])
                self._add_total(name, other._totals[name], upload.combine)
        self._clients += other._clients
        self._weights += other._weights
        self.bytes += other.bytes
        self.relayed += other.relayed

    def written(self) -> tuple[dict[str, Any], Tree]:
        """All that is folded so far as JSON-able facts and arrays, for another process."""
        self._close_shard()
        kept = {
            name: self._kept[name] if upload.combine is Combine.KEEP else dict(_numbered(self._kept[name]))
            for name, upload in self._phase.uploads.items()
            if name in self._kept
        }
        facts = {"clients": self._clients, "weights": self._weights, "bytes": self.bytes, "relayed": self.relayed}
        return facts, {"totals": self._totals, "like": self._like, "kept": kept}

    @classmethod
    def read(cls, phase: Phase, clients: int, facts: Mapping[str, Any], arrays: Tree) -> Combiner:
        """The inverse of `written`. The arrays belong to the combiner from now on."""
        combiner = cls(phase, clients)
        combiner._clients, combiner._weights = list(facts["clients"]), list(facts["weights"])
        combiner.bytes, combiner.relayed = facts["bytes"], facts["relayed"]
        combiner._totals, combiner._like = (dict(arrays.get(name, {})) for name in ("totals", "like"))
        for name, values in arrays.get("kept", {}).items():
            listed = phase.uploads[name].combine is Combine.CONCAT
            combiner._kept[name] = [values[number] for number, _ in _numbered(values)] if listed else dict(values)
        return combiner

    def numbers(self) -> list[Tensor]:
        """Everything folded so far: where it is sound, so is every packet it was made of."""
        self._close_shard()
        everything = [leaf for value in self._totals.values() for leaf in _leaves(value)]
        for name, upload in self._phase.uploads.items():
            parts = self._kept.get(name, [])
            for part in parts.values() if upload.combine is Combine.KEEP and parts else parts:
                everything += _leaves(part)
        return everything

    def finish(self) -> Combined:
        """The combined uploads in the types they came in."""
        self._close_shard()
        values: Tree = {}
        for name, upload in self._phase.uploads.items():
            if upload.combine is Combine.CONCAT and name in self._kept:
                values[name] = _concatenate(self._kept[name])
            elif upload.combine is Combine.KEEP and name in self._kept:
                values[name] = self._kept[name]
            elif name in self._totals:
                values[name] = self._closed(name, upload.combine)
        return Combined(values, tuple(self._clients), tuple(self._weights))

    def sent_rows(self) -> dict[str, tuple[int, ...]]:
        """Of every CONCAT upload, how many rows each client sent, in the order of `finish().clients`."""
        return {
            name: tuple(len(next(iter(_leaves(part)))) for part in self._kept[name])
            for name, upload in self._phase.uploads.items()
            if upload.combine is Combine.CONCAT and name in self._kept
        }

    def rows(self) -> dict[str, int]:
        """How many rows every CONCAT upload has so far: the size of a shared buffer."""
        return {
            name: sum(len(next(iter(_leaves(part)))) for part in self._kept.get(name, []))
            for name, upload in self._phase.uploads.items()
            if upload.combine is Combine.CONCAT
        }

    def _enter(self, packet: Packet) -> None:
        self._clients.append(packet.sender)
        self._weights.append(packet.weight)
        self.bytes += tree.nbytes(packet.arrays)
        if self._phase.relayed:
            self.relayed += tree.nbytes({name: packet.arrays[name] for name in self._phase.relayed})

    def _fold(self, name: str, how: Combine, packet: Packet) -> None:
        value = packet.arrays[name]
        if how is Combine.CONCAT:
            self._kept.setdefault(name, []).append(_copy(value))
        elif how is Combine.KEEP:
            self._kept.setdefault(name, {})[str(packet.sender)] = _copy(value)
        else:
            factor = packet.weight if how is Combine.MEAN else 1.0
            if name not in self._open:
                self._remember_type(name, value)
                self._open[name] = _map(lambda leaf: _opened(leaf, factor), value)
            else:
                _map(lambda total, leaf: _accumulate(total, leaf, factor, how), self._open[name], value)

    def _close_shard(self) -> None:
        for name, value in self._open.items():
            self._add_total(name, value, self._phase.uploads[name].combine)
        self._open = {}

    def _add_total(self, name: str, value: Any, how: Combine) -> None:
        if name in self._totals:
            _map(partial(_accumulate, factor=1.0, how=how), self._totals[name], value)
        else:
            self._totals[name] = value

    def _remember_type(self, name: str, value: Any) -> None:
        self._like.setdefault(name, _map(lambda leaf: leaf.new_empty(0), value))

    def _closed(self, name: str, how: Combine) -> Any:
        divisor = math.fsum(self._weights) if how is Combine.MEAN else 1.0
        return _map(
            lambda total, like: (total / divisor).to(like.dtype) if total.is_floating_point() else total,
            self._totals[name],
            self._like[name],
        )


def _opened(leaf: Tensor, factor: float) -> Tensor:
    return leaf.double() * factor if leaf.is_floating_point() else leaf.clone()


def _accumulate(total: Tensor, leaf: Tensor, factor: float, how: Combine) -> Tensor:
    # Integer leaves are counters (BatchNorm's batch count): a mean of them means nothing, and the largest does not
    # depend on the order of clients as "the last one's" would.
    if leaf.is_floating_point():
        return _add_wide(total, leaf, factor)
    if how is Combine.SUM:
        return total.add_(leaf)
    return torch.maximum(total, leaf, out=total)


def _add_wide(total: Tensor, leaf: Tensor, factor: float) -> Tensor:
    """total += factor · leaf in the total's precision; in pieces that stay in the cache, where the leaf is large."""
    if leaf.device.type != "cpu" or leaf.numel() <= _PIECE or not total.is_contiguous():
        return total.add_(leaf.to(total.dtype), alpha=factor)
    pieces = zip(torch.split(total.view(-1), _PIECE), torch.split(leaf.reshape(-1), _PIECE), strict=True)
    for into, piece in pieces:
        into.add_(piece.to(into.dtype), alpha=factor)
    return total


def _weighted_sum(factors: Sequence[float], how: Combine, *leaves: Tensor) -> Tensor:
    stacked = torch.stack(leaves)
    if not stacked.is_floating_point():
        return stacked.sum(0) if how is Combine.SUM else stacked.amax(0)
    total: Tensor = torch.tensordot(
        torch.tensor(factors, dtype=torch.float64).to(stacked.device), stacked.double(), dims=1
    )
    return total


def _map(function: Any, value: Any, *others: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value, *others)
    return {name: _map(function, child, *(other[name] for other in others)) for name, child in value.items()}


def _copy(value: Any) -> Any:
    return _map(lambda leaf: leaf.detach().clone(), value)


def _numbered(values: Collection[Any]) -> list[tuple[str, Any]]:
    return [(str(number), value) for number, value in enumerate(values)]


def _leaves(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [leaf for _, leaf in tree.leaves(value)]


def _concatenate(parts: list[Any]) -> Any:
    first: Any = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    names: Mapping[str, Any] = first
    return {name: _concatenate([part[name] for part in parts]) for name in names}
