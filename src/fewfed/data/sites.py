"""The sites that a data set knows by name: how many rows each trains on, and which of the test rows are its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fewfed.data.federation import SplitFederation

NOBODY = -1
"""The site of a test row, or of a client, that is of no site."""


@dataclass(frozen=True)
class Sites:
    """Natural sites, numbered from 0. There are none where the data name no groups that the run goes by."""

    names: tuple[str, ...]
    train_rows: tuple[int, ...]
    """Of each site, in the clients' hands."""
    of_tests: Tensor
    """The site of each test row."""
    of_clients: tuple[int, ...]
    """The site that each client is, where clients are sites."""


def sites_of(federation: SplitFederation) -> Sites:
    """All sites: those that train, those that only test, and those that do neither in this run."""
    dataset, split = federation.dataset, federation.split
    rows, clients = len(federation.test), len(federation)
    natural = split.name in dataset.groups or split.name in dataset.test_groups
    grouping = split.name if natural else next(iter(dataset.test_groups), "")
    nowhere = np.full(len(dataset.test), NOBODY)
    tested = dataset.test_groups.get(grouping, nowhere)
    trained = dataset.groups.get(grouping, np.empty(0, np.int64))
    known = np.unique(np.concatenate([trained, tested[tested != NOBODY]])) if grouping else np.empty(0, np.int64)
    held = trained[split.order] if len(trained) else trained
    counts = {int(one): int(count) for one, count in zip(*np.unique(held, return_counts=True), strict=True)}
    return Sites(
        names=tuple(dataset.group_name(grouping, int(one)) for one in known),
        train_rows=tuple(counts.get(int(one), 0) for one in known),
        # With noise on the test part there are several copies of it, one after another.
        of_tests=torch.from_numpy(_places(known, tested)).repeat(rows // max(1, len(dataset.test))),
        of_clients=_of_clients(known, held, split.offsets) if natural and len(held) else (NOBODY,) * clients,
    )


def _places(known: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Where each id stands among those that are known, which are sorted."""
    if not len(known):
        return np.full(len(ids), NOBODY)
    place = np.searchsorted(known, ids).clip(max=len(known) - 1)
    return np.where(known[place] == ids, place, NOBODY)


def _of_clients(known: np.ndarray, held: np.ndarray, offsets: np.ndarray) -> tuple[int, ...]:
    """The site of each client by its rows, which lie one client after another."""
    sizes = np.diff(offsets)
    owner = np.repeat(np.arange(len(sizes)), sizes)
    first = held[np.minimum(offsets[:-1], len(held) - 1)]
    others = np.bincount(owner, held != first[owner], len(sizes))
    return tuple(np.where((sizes > 0) & (others == 0), _places(known, first), NOBODY).tolist())
