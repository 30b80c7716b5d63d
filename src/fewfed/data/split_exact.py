"""The split that fixes both numbers: exactly N rows of exactly Q classes on every client.

A client's classes have N // Q rows each, and N % Q of them one row more. Classes are chosen first, then the classes
that give the extra rows; where a class has none left, extras already given are moved along a chain of classes.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

import numpy as np

from fewfed.data.split_pool import Assigned, Pool, note_of_unused
from fewfed.errors import ConfigError


def exact(pool: Pool, clients: int, generator: np.random.Generator, rows_each: int, classes_each: int) -> Assigned:
    """Exactly `rows_each` rows of exactly `classes_each` classes on every client, shares differing by one at most."""
    rule = f"exact:{rows_each}:{classes_each}"
    if classes_each > pool.classes:
        raise ConfigError(
            f"split '{rule}' asks for {classes_each} classes on each client but the data has {pool.classes}: "
            f"use exact:{rows_each}:{pool.classes} or fewer classes"
        )
    if rows_each < classes_each:
        raise ConfigError(
            f"split '{rule}' asks for {classes_each} classes in {rows_each} rows: "
            f"use exact:{classes_each}:{classes_each} or more rows"
        )
    members = pool.shuffled(generator).by_class()
    sizes = np.array([len(part) for part in members])
    counts = _counts(sizes, clients, rows_each, classes_each, generator)
    if counts is None:
        raise ConfigError(
            f"split '{rule}' cannot serve {clients} clients from {len(pool)} rows: "
            + _what_works(sizes, clients, rows_each, classes_each, generator)
        )
    ends = np.cumsum(counts, axis=0)
    starts = ends - counts
    return Assigned(
        [
            np.concatenate([members[c][starts[client, c] : ends[client, c]] for c in np.flatnonzero(counts[client])])
            for client in range(clients)
        ],
        note=note_of_unused(sizes, counts.sum(0)),
    )


def _counts(
    sizes: np.ndarray, clients: int, rows_each: int, classes_each: int, generator: np.random.Generator
) -> np.ndarray | None:
    """Rows of each class on each client, or None where the classes do not suffice."""
    if clients * rows_each > int(sizes.sum()):
        return None
    base, extra = divmod(rows_each, classes_each)
    owned = _choose_classes(sizes, clients, base, rows_each / classes_each, classes_each, generator)
    if owned is None:
        return None
    spare = sizes - base * owned.sum(0)
    given = np.zeros_like(owned)
    for client in range(clients):
        for _ in range(extra):
            if not _give_extra(client, owned, given, spare):
                return None
    counts: np.ndarray = base * owned + given
    return counts


def _choose_classes(
    sizes: np.ndarray, clients: int, base: int, share: float, classes_each: int, generator: np.random.Generator
) -> np.ndarray | None:
    """Clients-by-classes 0/1 matrix: each client takes the classes with most rows left, ties at random.

    For equal shares this serves as many clients as any other choice.
    """
    owned = np.zeros((clients, len(sizes)), dtype=np.int64)
    left = sizes.astype(float)
    room = sizes // base
    for client in range(clients):
        richest = np.lexsort((generator.random(len(left)), -left, room <= 0))[:classes_each]
        if (room[richest] <= 0).any():
            return None
        owned[client, richest] = 1
        left[richest] -= share
        room[richest] -= 1
    return owned


def _give_extra(client: int, owned: np.ndarray, given: np.ndarray, spare: np.ndarray) -> bool:
    """Give `client` one row more of one of its classes; moves other clients' extras if that is what it takes."""
    candidates = np.flatnonzero(owned[client] > given[client])
    richest = candidates[np.argmax(spare[candidates])]
    if spare[richest] > 0:
        given[client, richest] = 1
        spare[richest] -= 1
        return True
    chain = _chain_to_spare(candidates, owned, given, spare)
    if chain is None:
        return False
    for source, target in itertools.pairwise(chain):
        mover = int(np.argmax(given[:, source] & owned[:, target] & (1 - given[:, target])))
        given[mover, source], given[mover, target] = 0, 1
    given[client, chain[0]] = 1
    spare[chain[-1]] -= 1
    return True


def _chain_to_spare(
    candidates: np.ndarray, owned: np.ndarray, given: np.ndarray, spare: np.ndarray
) -> list[int] | None:
    """Shortest chain of classes from a candidate to one with rows to spare, along which clients can move an extra."""
    movable = given.T @ (owned * (1 - given)) > 0
    came_from: dict[int, int | None] = {int(c): None for c in candidates}
    waiting = deque(came_from)
    while waiting:
        here = waiting.popleft()
        if spare[here] > 0:
            chain = [here]
            while (previous := came_from[chain[0]]) is not None:
                chain.insert(0, previous)
            return chain
        for there in np.flatnonzero(movable[here]).tolist():
            if there not in came_from:
                came_from[there] = here
                waiting.append(there)
    return None


def _what_works(
    sizes: np.ndarray, clients: int, rows_each: int, classes_each: int, generator: np.random.Generator
) -> str:
    """Fewer clients, or fewer rows on each; both were tried."""
    fewer_clients = _largest(0, clients, lambda k: _counts(sizes, k, rows_each, classes_each, generator) is not None)
    too_many = min(rows_each, int(sizes.sum()) // clients + 1)
    fewer_rows = _largest(
        classes_each - 1, too_many, lambda n: _counts(sizes, clients, n, classes_each, generator) is not None
    )
    advice = f"use at most {fewer_clients} clients" if fewer_clients else "use fewer classes on each client"
    return advice if fewer_rows < classes_each else f"{advice}, or exact:{fewer_rows}:{classes_each}"


def _largest(works: int, fails: int, feasible: Callable[[int], bool]) -> int:
    """The largest value below `fails` that a bisection finds feasible, or `works` itself."""
    while fails - works > 1:
        middle = (works + fails) // 2
        works, fails = (middle, fails) if feasible(middle) else (works, middle)
    return works
