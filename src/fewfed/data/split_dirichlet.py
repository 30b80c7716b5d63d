"""Label skew by Dirichlet proportions: the released FLea rule, and SEM's multinomial one, both with bounded retries."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fewfed.data.split_draws import Draws, ModernDraws
from fewfed.data.split_pool import Assigned, Pool
from fewfed.errors import ConfigError, did_you_mean

CLIENTS_PER_SLICE = 100
SETTLE_AFTER = 1000
"""Attempts at a minimum size nobody asked for, after which the best one so far will do if it has no empty client."""
HOPELESS_AFTER = 500
HOPELESS_DEVIATIONS = 5.5
"""Attempts after which it is given up if the number of clients that got too little stayed that many standard deviations
above none, where not one attempt in ten million succeeds. The released partition that took 39 453 was at 3.6."""


@dataclass(frozen=True)
class DirichletOptions:
    """How `dir` and `dirm` are drawn; None leaves the choice to the rule.

    Slices cut the rows into parts whose clients are drawn apart: by class (each slice has its share of every class) or
    by order (contiguous rows). Only `dir` is sliced. Attempts are counted for each slice, seconds for all.
    """

    min_size: int | None = None
    slices: int | None = None
    slice_by: Literal["class", "order"] = "class"
    max_attempts: int = 5_000
    max_seconds: float = 20.0

    def __post_init__(self) -> None:
        if self.slices is not None and self.slices < 1:
            raise ConfigError(f"slices = {self.slices}: expected at least 1")
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts = {self.max_attempts}: expected at least 1")


def released_options(data_name: str, clients: int, mu: float) -> DirichletOptions:
    """Minimum size and slicing of the released FLea partitions (flea 3.4) for CIFAR-10, UrbanSound8K or UCI-HAR."""
    families = {"cifar10": "cifar", "us8k": "us8k", "urbansound8k": "us8k", "har": "har", "ucihar": "har"}
    plain = data_name.lower().replace("-", "").replace("_", "")
    if plain not in families:
        raise ConfigError(did_you_mean("data with a released partition", data_name, families))
    many = clients > CLIENTS_PER_SLICE
    slices, min_size = 1, 10
    slice_by: Literal["class", "order"] = "class"
    if families[plain] == "cifar" and many:
        slices, min_size = math.ceil(clients / CLIENTS_PER_SLICE), 10 if mu > 0.1 else 3
    elif families[plain] == "har":
        min_size = 6
        if many and mu <= 0.1:
            slices, slice_by, min_size = 2, "order", 3
    # One of the released partitions took 39 453 attempts.
    return DirichletOptions(min_size, slices, slice_by, max_attempts=100_000, max_seconds=300.0)


def balanced_dirichlet(pool: Pool, clients: int, draws: Draws, mu: float, options: DirichletOptions) -> Assigned:
    """For each class, proportions ~ Dir(mu) over the clients that do not yet hold their equal share (flea 3.4)."""
    goal = _goal(options, pool.classes)
    if options.min_size is None and not draws.replays:
        # A fifth of the mean size is what 10 of 50 is in the released settings.
        usual = min(3 if mu <= 0.1 else 10, max(1, len(pool) // clients // 5))
        goal = replace(goal, min_size=usual, settle_after=SETTLE_AFTER)
    _refuse_impossible(goal, len(pool), clients)
    slices = options.slices or (1 if draws.replays else math.ceil(clients / CLIENTS_PER_SLICE))
    groups = [len(part) for part in np.array_split(np.arange(clients), min(slices, clients))]
    drawn: list[np.ndarray] = []
    attempts = 0
    for part, group in zip(_cut(pool, groups, options.slice_by), groups, strict=True):
        slice_drawn, tried = _one_slice(part.by_class(), group, draws, mu, goal)
        drawn += slice_drawn
        attempts += tried
    smallest = min(len(client) for client in drawn)
    note = ""
    if smallest < goal.min_size:
        note = f"smallest client {smallest}: no draw gave every client {goal.min_size} rows in {SETTLE_AFTER} attempts"
    return Assigned(drawn, attempts, note)


def multinomial_dirichlet(
    pool: Pool, clients: int, generator: np.random.Generator, mu: float, options: DirichletOptions
) -> Assigned:
    """For each class, proportions ~ Dir(mu) over the clients, and each row drawn from them on its own (SEM, 2.7)."""
    members = pool.shuffled(generator).by_class()
    concentration = np.full(clients, mu)

    present, left_over = _with_rows(members)
    draws = ModernDraws(generator)

    def attempt() -> np.ndarray:
        counts = np.zeros((len(members), clients), dtype=np.int64)
        for label, empty in present:
            draws.skip(concentration, empty)
            counts[label] = generator.multinomial(len(members[label]), generator.dirichlet(concentration))
        draws.skip(concentration, left_over)
        return counts

    goal = _goal(options, 1)
    _refuse_impossible(goal, len(pool), clients)
    counts, attempts = _retry(attempt, goal, clients)
    return Assigned(_hand_out(members, counts), attempts)


@dataclass(frozen=True)
class _Goal:
    """When to stop drawing: `settle_after` attempts any split without an empty client will do (None: never)."""

    min_size: int
    settle_after: int | None
    max_attempts: int
    deadline: float


def _goal(options: DirichletOptions, default_min_size: int) -> _Goal:
    min_size = default_min_size if options.min_size is None else options.min_size
    return _Goal(min_size, None, options.max_attempts, time.monotonic() + options.max_seconds)


def _cut(pool: Pool, groups: list[int], slice_by: Literal["class", "order"]) -> list[Pool]:
    """The pool of each group of clients, in proportion to the number of clients in it."""
    ends = np.cumsum(groups)

    def proportional(rows: np.ndarray) -> list[np.ndarray]:
        return np.split(rows, ends[:-1] * len(rows) // ends[-1])

    if slice_by == "order":
        return [pool.only(rows) for rows in proportional(pool.rows)]
    by_class = [proportional(rows) for rows in pool.by_class()]
    return [pool.only(np.concatenate(parts)) for parts in zip(*by_class, strict=True)]


def _one_slice(
    members: list[np.ndarray], clients: int, draws: Draws, mu: float, goal: _Goal
) -> tuple[list[np.ndarray], int]:
    concentration = np.full(clients, mu)
    share = sum(len(part) for part in members) / clients
    shuffled = [part.copy() for part in members]
    present, left_over = _with_rows(members)

    def attempt() -> np.ndarray | None:
        sizes = np.zeros(clients, dtype=np.int64)
        counts = np.zeros((len(members), clients), dtype=np.int64)
        for label, empty in present:
            part = members[label]
            draws.skip(concentration, empty)
            if draws.replays:
                shuffled[label][:] = part
                draws.shuffle(shuffled[label])
            proportions = draws.dirichlet(concentration) * (sizes < share)
            total = proportions.sum()
            if not total > 0:
                return None
            ends = ((proportions / total).cumsum() * len(part)).astype(np.int64)
            ends[-1] = len(part)
            row = counts[label]
            row[0] = ends[0]
            np.subtract(ends[1:], ends[:-1], out=row[1:])
            sizes += row
        draws.skip(concentration, left_over)
        return counts

    counts, attempts = _retry(attempt, goal, clients)
    if not draws.replays:
        for part in shuffled:
            draws.shuffle(part)
    drawn = _hand_out(shuffled, counts)
    for client in drawn:
        draws.shuffle(client)
    return drawn, attempts


def _with_rows(members: list[np.ndarray]) -> tuple[list[tuple[int, int]], int]:
    """Each class that has rows with the number of empty ones before it, and the empty ones after the last.

    Proportions are drawn for empty classes too, and then not used: those side by side are drawn in one call.
    """
    present: list[tuple[int, int]] = []
    empty = 0
    for label, part in enumerate(members):
        if len(part):
            present.append((label, empty))
            empty = 0
        else:
            empty += 1
    return present, empty


def _hand_out(members: list[np.ndarray], counts: np.ndarray) -> list[np.ndarray]:
    """Cut each class by its row of `counts` and join what each client got."""
    owner = np.concatenate([np.repeat(np.arange(counts.shape[1]), row) for row in counts])
    joined = np.concatenate(members)[np.argsort(owner, kind="stable")]
    return np.split(joined, np.cumsum(counts.sum(0))[:-1])


def _refuse_impossible(goal: _Goal, rows: int, clients: int) -> None:
    if goal.settle_after is None and clients * goal.min_size > rows:
        raise ConfigError(
            f"{rows} rows are too few for {clients} clients with at least {goal.min_size} rows each: use fewer clients "
            f"or min_size = {rows // clients} or less"
        )


def _retry(attempt: Callable[[], np.ndarray | None], goal: _Goal, clients: int) -> tuple[np.ndarray, int]:
    """Draw counts until the goal is met; after the last attempt allowed, say how near it came."""
    best: np.ndarray | None = None
    best_smallest = -1
    tried = 0
    needed = goal.min_size if goal.settle_after is None else 1
    lacking = np.zeros(HOPELESS_AFTER)
    while tried < goal.max_attempts and (tried == 0 or time.monotonic() < goal.deadline):
        counts = attempt()
        sizes = None if counts is None else counts.sum(0)
        if tried < HOPELESS_AFTER:
            lacking[tried] = clients if sizes is None else np.count_nonzero(sizes < needed)
        tried += 1
        smallest = -1 if sizes is None else int(sizes.min())
        if smallest > best_smallest:
            best, best_smallest = counts, smallest
        settles = goal.settle_after is not None and tried >= goal.settle_after and best_smallest >= 1
        if best is not None and (best_smallest >= goal.min_size or settles):
            return best, tried
        if tried == HOPELESS_AFTER and lacking.mean() > HOPELESS_DEVIATIONS * max(float(lacking.std()), 0.5):
            break
    lower = f"min_size = {best_smallest} or less, " if best_smallest >= 1 else ""
    raise ConfigError(
        f"no client partition with at least {goal.min_size} rows each was found in {tried} attempts; the best attempt "
        f"had a smallest client of {max(best_smallest, 0)}: use {lower}fewer clients or a larger MU"
    )
