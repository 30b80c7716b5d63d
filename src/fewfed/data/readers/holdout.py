"""Hold some rows out for testing, in the proportions of the strata they come from."""

from __future__ import annotations

import numpy as np


def hold_out(strata: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted indices of the rows kept and of the ceil(fraction * n) rows held out.

    Each stratum gives its share rounded down; the rest comes from the largest remainders. A stratum never gives all
    of its rows, so fewer may be held out where strata are tiny.
    """
    counts = np.unique(strata, return_counts=True)[1]
    shares = fraction * counts
    taken = np.minimum(np.floor(shares + 1e-9).astype(np.int64), counts - 1)
    missing = int(np.ceil(fraction * len(strata) - 1e-9)) - int(taken.sum())
    for stratum in np.argsort(-(shares - taken), kind="stable"):
        if missing <= 0:
            break
        if taken[stratum] < counts[stratum] - 1:
            taken[stratum] += 1
            missing -= 1
    rng = np.random.default_rng(seed)
    members = np.split(np.argsort(strata, kind="stable"), np.cumsum(counts)[:-1])
    held = [rng.permutation(rows)[:count] for rows, count in zip(members, taken, strict=True)] if len(counts) else []
    test = np.sort(np.concatenate(held)) if held else np.empty(0, np.int64)
    return np.setdiff1d(np.arange(len(strata)), test), test
