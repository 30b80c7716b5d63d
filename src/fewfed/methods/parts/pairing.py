"""Who passes a model on to whom: pairings of a round's clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fewfed.plan import Random

Pairing = Literal["cycle", "swap", "pairs", "derangement", "permutation", "self"]


def pair(kind: Pairing, clients: Sequence[int], random: Random) -> dict[int, int]:
    """Sender to receiver: every client sends once and receives once. One client alone is its own partner.

    `cycle`: one random ring. `swap`: random pairs, with one ring of three when their number is odd. `pairs`: random
    pairs, and an odd one out keeps its own model, as in SEM's released code. `derangement`: uniform among permutations
    that give nobody its own model. `permutation`: uniform among all. `self`: nobody exchanges anything, the control.
    """
    if kind == "self" or len(clients) < 2:
        return {client: client for client in clients}
    order = _shuffled(clients, random)
    if kind == "cycle":
        return _ring(order)
    if kind in ("swap", "pairs"):
        return _swaps(order, last=3 if kind == "swap" else 1)
    while kind == "derangement" and any(a == b for a, b in zip(clients, order, strict=True)):
        order = _shuffled(clients, random)
    return dict(zip(clients, order, strict=True))


def _shuffled(clients: Sequence[int], random: Random) -> list[int]:
    return [clients[position] for position in random.permutation(len(clients)).tolist()]


def _ring(order: list[int]) -> dict[int, int]:
    return dict(zip(order, order[1:] + order[:1], strict=True))


def _swaps(order: list[int], last: int) -> dict[int, int]:
    """Pairs; where the number of clients is odd, the last so many are a ring of their own."""
    in_pairs = len(order) - last * (len(order) % 2)
    rings = [order[start : start + 2] for start in range(0, in_pairs, 2)] + [order[in_pairs:]]
    return {sender: receiver for ring in rings for sender, receiver in _ring(ring).items()}
