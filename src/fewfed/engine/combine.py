"""Declared combinations: uploads are folded in one by one, so a cohort's models never stand in memory together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.job import Done
from fewfed.engine.threads import one_thread
from fewfed.method import Combined
from fewfed.phase import Combine, Phase
from fewfed.tree import Tree

_PIECE = 1 << 17
"""Numbers added at once: a megabyte in double precision."""


class Combiner:
    """Folds the uploads of one phase. Sums run in float64 in the order of the members: the same on every executor."""

    def __init__(self, phase: Phase) -> None:
        self._phase = phase
        self._values: dict[str, Any] = {}
        self._like: dict[str, Any] = {}
        self._clients: list[int] = []
        self._weights: list[float] = []
        self.bytes = 0

    def add(self, client: int, upload: Tree, weight: float) -> None:
        """Fold in one client's upload. What it holds may be overwritten afterwards."""
        self._enter(client, upload, weight)
        with one_thread():
            for name, how in self._phase.uploads.items():
                self._fold(name, how, upload[name], client, weight)

    def _enter(self, client: int, upload: Tree, weight: float) -> None:
        if set(upload) != set(self._phase.uploads):
            raise ValueError(
                f"phase '{self._phase.name}' declares the uploads {sorted(self._phase.uploads)}, "
                f"client {client} sent {sorted(upload)}"
            )
        self._clients.append(client)
        self._weights.append(weight)
        self.bytes += tree.nbytes(upload)

    def add_block(self, done: Sequence[Done]) -> None:
        """Fold in several uploads at once: one weighted sum a leaf instead of one addition a client and leaf."""
        for turn in done:
            self._enter(turn.client, turn.upload, turn.weight)
        for name, how in self._phase.uploads.items():
            if how.seen_raw:
                for turn in done:
                    self._fold(name, how, turn.upload[name], turn.client, turn.weight)
            else:
                factors = [turn.weight if how is Combine.MEAN else 1.0 for turn in done]
                total = _map(partial(_weighted_sum, factors, how), *(turn.upload[name] for turn in done))
                self._like.setdefault(name, _map(lambda leaf: leaf.new_empty(0), done[0].upload[name]))
                if name in self._values:
                    _map(partial(_accumulate, factor=1.0, how=how), self._values[name], total)
                else:
                    self._values[name] = total

    def finish(self) -> Combined:
        """The combined uploads in the types they came in."""
        values: Tree = {}
        for name, how in self._phase.uploads.items():
            if name not in self._values:
                continue
            if how is Combine.CONCAT:
                values[name] = _concatenate(self._values[name])
            elif how is Combine.KEEP:
                values[name] = self._values[name]
            else:
                values[name] = self._closed(name, sum(self._weights) if how is Combine.MEAN else 1.0)
        return Combined(values, tuple(self._clients), tuple(self._weights))

    def rows(self) -> dict[str, int]:
        """How many rows every CONCAT upload has so far: the size of a shared buffer."""
        return {
            name: sum(len(next(_leaves(part))) for part in self._values.get(name, []))
            for name, how in self._phase.uploads.items()
            if how is Combine.CONCAT
        }

    def _fold(self, name: str, how: Combine, value: Any, client: int, weight: float) -> None:
        if how is Combine.CONCAT:
            self._values.setdefault(name, []).append(_copy(value))
        elif how is Combine.KEEP:
            self._values.setdefault(name, {})[str(client)] = _copy(value)
        else:
            factor = weight if how is Combine.MEAN else 1.0
            if name not in self._values:
                self._like[name] = _map(lambda leaf: leaf.new_empty(0), value)
                self._values[name] = _map(lambda leaf: _opened(leaf, factor), value)
            else:
                _map(lambda total, leaf: _accumulate(total, leaf, factor, how), self._values[name], value)

    def _closed(self, name: str, divisor: float) -> Any:
        return _map(
            lambda total, like: (total / divisor).to(like.dtype) if total.is_floating_point() else total,
            self._values[name],
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


def _leaves(value: Any) -> Any:
    return iter([value]) if isinstance(value, Tensor) else (leaf for _, leaf in tree.leaves(value))


def _concatenate(parts: list[Any]) -> Any:
    first: Any = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    names: Mapping[str, Any] = first
    return {name: _concatenate([part[name] for part in parts]) for name in names}
