"""Split rules that need no retries: even, by number of classes, by size skew, by natural group."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fewfed.data.split_draws import Draws
from fewfed.data.split_pool import Assigned, Flat, Pool, note_of_unused
from fewfed.errors import ConfigError, DataError


def even(pool: Pool, clients: int, generator: np.random.Generator) -> Assigned:
    """Every class spread evenly: rows sorted by class are dealt out like cards."""
    dealt = np.concatenate(pool.shuffled(generator).by_class())
    owner = np.arange(len(dealt)) % clients
    return Assigned(Flat(dealt[np.argsort(owner, kind="stable")], np.bincount(owner, minlength=clients)))


def quantity(pool: Pool, clients: int, draws: Draws, classes_each: int) -> Assigned:
    """Client c owns class c mod C and others drawn at random; each class is cut evenly among its owners (flea 3.4)."""
    rule = f"qua:{classes_each}"
    if classes_each > pool.classes:
        raise ConfigError(
            f"split '{rule}' asks for {classes_each} classes on each client but the data has {pool.classes}: "
            f"use qua:1 to qua:{pool.classes}"
        )
    if clients * classes_each > len(pool):
        raise ConfigError(
            f"split '{rule}' over {clients} clients needs {clients * classes_each} rows but there are {len(pool)}: "
            "use fewer clients or fewer classes on each"
        )
    owners = _owners(pool.classes, clients, draws, classes_each)
    parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
    for label, members in enumerate(pool.by_class()):
        if len(members) < len(owners[label]):
            raise ConfigError(
                f"split '{rule}' over {clients} clients gives class {label} to {len(owners[label])} clients "
                f"but it has {len(members)} rows: use fewer clients or fewer classes on each"
            )
        draws.shuffle(members)
        if not owners[label]:
            continue
        for client, part in zip(owners[label], np.array_split(members, len(owners[label])), strict=True):
            parts[client].append(part)
    note = note_of_unused([len(members) for members in pool.by_class()], [len(each) for each in owners])
    return Assigned([np.concatenate(part) for part in parts], note=note)


def _owners(classes: int, clients: int, draws: Draws, classes_each: int) -> list[list[int]]:
    """The clients that own each class."""
    owners: list[list[int]] = [[] for _ in range(classes)]
    for client in range(clients):
        owned = [client % classes]
        while len(owned) < classes_each:
            drawn = draws.below(classes)
            if drawn not in owned:
                owned.append(drawn)
        for label in owned:
            owners[label].append(client)
    return owners


def size_skew(pool: Pool, clients: int, generator: np.random.Generator, beta: float, min_size: int) -> Assigned:
    """Sizes ~ Dirichlet(beta) above a floor of `min_size`; labels are not looked at, so they are alike everywhere."""
    spare = len(pool) - clients * min_size
    share = generator.dirichlet(np.full(clients, beta)) * spare
    sizes = np.floor(share).astype(np.int64)
    largest_remainders = np.argsort(sizes - share, kind="stable")[: spare - int(sizes.sum())]
    sizes[largest_remainders] += 1
    return Assigned(np.split(generator.permutation(pool.rows), np.cumsum(sizes + min_size)[:-1]))


def natural(
    name: str,
    groups: Mapping[str, np.ndarray],
    rows: int,
    clients: int,
    volume: float,
    least: int,
    generator: np.random.Generator,
) -> Assigned:
    """One client for each group id, in the order of the ids.

    `volume` is taken within each group, but one row and `least` rows are left of it, where it has as many.
    """
    if name not in groups:
        known = f"only {', '.join(sorted(groups))} ids" if groups else "no natural groups"
        rules = " or ".join(f"'{group}'" for group in sorted(groups)) or "a rule such as 'iid' or 'dir:0.5'"
        raise ConfigError(f"split '{name}' needs a {name} id for every row but this data has {known}: use {rules}")
    given = np.asarray(groups[name])
    if given.shape != (rows,) or given.dtype.kind == "O":
        raise DataError(
            f"{name} ids have shape {given.shape} and type {given.dtype}: expected one a row, {rows} in all"
        )
    ids, member = np.unique(given, return_inverse=True)
    if clients not in (0, len(ids)):
        raise ConfigError(
            f"split '{name}' makes one client for each {name}, {len(ids)} in this data, but {clients} clients were "
            f"asked for: use clients = {len(ids)}, or 0 to take all"
        )
    order, sizes = np.argsort(member, kind="stable"), np.bincount(member)
    if volume == 1:
        return Assigned(Flat(order, sizes))
    parts = np.split(order, np.cumsum(sizes)[:-1])
    taken = [max(1, min(least, len(part)), round(volume * len(part))) for part in parts]
    drawn = [generator.choice(part, size, replace=False) for part, size in zip(parts, taken, strict=True)]
    return Assigned([np.sort(part) for part in drawn])
