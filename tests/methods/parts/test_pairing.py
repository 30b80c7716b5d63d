"""Pairings: everybody sends once and receives once, and only `pairs` leaves the odd one out alone."""

from __future__ import annotations

import math
from collections import Counter
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewfed.methods.parts.pairing import Pairing, pair
from fewfed.plan import Random

KINDS: tuple[Pairing, ...] = get_args(Pairing)
CLIENTS = st.lists(st.integers(0, 999), min_size=1, max_size=11, unique=True)


@pytest.mark.parametrize("kind", KINDS)
@given(clients=CLIENTS, seed=st.integers(0, 2**32))
def test_every_client_sends_once_and_receives_once(kind: Pairing, clients: list[int], seed: int) -> None:
    partner = pair(kind, clients, Random(seed))
    assert sorted(partner) == sorted(partner.values()) == sorted(clients)
    assert partner == pair(kind, clients, Random(seed))
    if kind in ("cycle", "swap", "derangement") and len(clients) > 1:
        assert all(sender != receiver for sender, receiver in partner.items())


@given(clients=CLIENTS, seed=st.integers(0, 2**32))
def test_a_cycle_is_one_ring(clients: list[int], seed: int) -> None:
    assert rings(pair("cycle", clients, Random(seed))) == [len(clients)]


@given(clients=CLIENTS, seed=st.integers(0, 2**32))
def test_swaps_are_pairs_and_at_most_one_ring_of_three(clients: list[int], seed: int) -> None:
    lengths = rings(pair("swap", clients, Random(seed)))
    if len(clients) == 1:
        assert lengths == [1]
    else:
        assert lengths == [2] * (len(clients) // 2 - len(clients) % 2) + [3] * (len(clients) % 2)


@given(clients=CLIENTS, seed=st.integers(0, 2**32))
def test_pairs_leave_the_odd_one_out_alone(clients: list[int], seed: int) -> None:
    assert rings(pair("pairs", clients, Random(seed))) == [1] * (len(clients) % 2) + [2] * (len(clients) // 2)


def test_everybody_is_as_often_the_odd_one_out() -> None:
    draws, times = Random(3), 3000
    seen = Counter(a for _ in range(times) for a, b in pair("pairs", range(5), draws).items() if a == b)
    assert all(abs(seen[client] - times / 5) < 5 * math.sqrt(times / 5) for client in range(5))


@pytest.mark.parametrize("kind", ["cycle", "swap", "derangement"])
@pytest.mark.parametrize("count", [4, 5])
def test_every_other_client_is_as_likely_a_partner(kind: Pairing, count: int) -> None:
    draws, times = Random(0), 3000
    seen = Counter(pair(kind, range(count), draws)[0] for _ in range(times))
    expected = times / (count - 1)
    assert set(seen) == set(range(1, count))
    assert all(abs(found - expected) < 5 * math.sqrt(expected) for found in seen.values())


def test_derangements_are_uniform() -> None:
    """Four clients have nine of them."""
    draws, times = Random(1), 4500
    seen = Counter(tuple(pair("derangement", range(4), draws).values()) for _ in range(times))
    assert len(seen) == 9
    assert all(abs(found - 500) < 5 * math.sqrt(500) for found in seen.values())


def test_permutations_have_one_fixed_point_on_average() -> None:
    draws, times = Random(2), 3000
    fixed = sum(a == b for _ in range(times) for a, b in pair("permutation", range(10), draws).items())
    assert abs(fixed / times - 1) < 5 / math.sqrt(times)


def test_self_exchanges_nothing() -> None:
    assert pair("self", [3, 1, 4], Random(0)) == {3: 3, 1: 1, 4: 4}


def rings(partner: dict[int, int]) -> list[int]:
    """Lengths of the rings a pairing falls into, ascending."""
    left, lengths = set(partner), []
    while left:
        start = client = min(left)
        length = 0
        while client in left:
            left.remove(client)
            client = partner[client]
            length += 1
        assert client == start
        lengths.append(length)
    return sorted(lengths)
