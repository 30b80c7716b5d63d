"""Rows that clients hold back for validation: nobody trains on them, and the test part stays untouched."""

from __future__ import annotations

import dataclasses

import numpy as np

from fewfed.data.splits import Split
from fewfed.errors import ConfigError

_KEY = 0x56414C
"""What sets this draw apart from others of the same seed."""


def hold_back(split: Split, fraction: float, seed: int, least: int = 1) -> tuple[Split, Split]:
    """What is left to train on, and what every client holds back: its share drawn at random, rounded up.

    A client keeps at least `least` rows to train on, and always one. So of one row none is held back, of two rows one.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"validation = {fraction}: expected above 0 and below 1", key="validation")
    sizes = split.sizes
    shares = np.ceil(fraction * sizes - 1e-9).astype(np.int64)
    taken = np.clip(shares, 0, np.maximum(0, sizes - max(1, least)))
    if not taken.any():
        raise ConfigError(
            f"validation = {fraction:g} leaves no validation rows: the largest client has {int(sizes.max(initial=0))} "
            f"rows and keeps at least {max(1, least)}; use fewer clients, a smaller min_size or no validation",
            key="validation",
        )
    owner = np.repeat(np.arange(len(split)), sizes)
    drawn = np.random.default_rng(np.random.SeedSequence((seed, _KEY))).random(len(owner))
    shuffled = np.lexsort((drawn, owner))  # Every client's rows in a random order, clients as they are.
    held = np.zeros(len(owner), bool)
    held[shuffled] = np.arange(len(owner)) - split.offsets[owner] < taken[owner]
    return _part(split, ~held, sizes - taken), _part(split, held, taken)


def _part(split: Split, chosen: np.ndarray, sizes: np.ndarray) -> Split:
    return dataclasses.replace(split, order=split.order[chosen], offsets=np.concatenate([[0], np.cumsum(sizes)]))
