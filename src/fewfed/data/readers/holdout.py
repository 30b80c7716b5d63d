"""Hold some rows out for testing, in the proportions of the strata, and within the sites, that they come from."""

from __future__ import annotations

import numpy as np


def hold_out(strata: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted indices of the rows kept and of the ceil(fraction * n) rows held out.

    Each stratum gives its share rounded down; the rest comes from the largest remainders. A stratum never gives all
    of its rows, so fewer may be held out where strata are tiny.
    """
    counts = np.unique(strata, return_counts=True)[1]
    taken = _shares(counts, fraction)
    rng = np.random.default_rng(seed)
    members = np.split(np.argsort(strata, kind="stable"), np.cumsum(counts)[:-1])
    held = [rng.permutation(rows)[:count] for rows, count in zip(members, taken, strict=True)] if len(counts) else []
    return _parted(len(strata), held)


def hold_out_within(sites: np.ndarray, strata: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The same within each site: every site gives its share, and keeps at least one row.

    A small site cannot give each stratum's share, and rounding alike everywhere would never hold a rare stratum out.
    So sites, in random order, give rows of what is most overdue so far over all sites. No stratum gives all its rows.
    """
    sizes = np.unique(sites, return_counts=True)[1]
    stratum = np.unique(strata, return_inverse=True)[1].reshape(-1)
    left = np.bincount(stratum)
    due = np.zeros(len(left))
    rng = np.random.default_rng(seed)
    members = np.split(np.argsort(sites, kind="stable"), np.cumsum(sizes)[:-1])
    wanted = _shares(sizes, fraction)
    held = []
    for site in rng.permutation(len(members)):
        rows = rng.permutation(members[site])
        present, counts = np.unique(stratum[rows], return_counts=True)
        due[present] += fraction * counts
        taken = _most_overdue(int(wanted[site]), counts, due[present], left[present])
        due[present] -= taken
        left[present] -= taken
        by_stratum = rows[np.argsort(stratum[rows], kind="stable")]
        first = np.cumsum(counts) - counts
        held += [by_stratum[start : start + count] for start, count in zip(first, taken, strict=True)]
    return _parted(len(sites), held)


def _shares(counts: np.ndarray, fraction: float) -> np.ndarray:
    """How many rows each group gives, so that ceil(fraction * n) are given in all and no group gives all of its own."""
    shares = fraction * counts
    taken: np.ndarray = np.minimum(np.floor(shares + 1e-9).astype(np.int64), counts - 1)
    missing = int(np.ceil(fraction * counts.sum() - 1e-9)) - int(taken.sum())
    for group in np.argsort(-(shares - taken), kind="stable"):
        if missing <= 0:
            break
        if taken[group] < counts[group] - 1:
            taken[group] += 1
            missing -= 1
    return taken


def _most_overdue(wanted: int, counts: np.ndarray, due: np.ndarray, left: np.ndarray) -> np.ndarray:
    """How many rows of each stratum a site gives. `counts`: what it has; `left`: what there is of it at all sites."""
    most = np.minimum(counts, left - 1)
    taken = np.clip(np.floor(due + 1e-9).astype(np.int64), 0, most)
    while taken.sum() > wanted:
        taken[np.argmin(np.where(taken > 0, due - taken, np.inf))] -= 1
    while taken.sum() < wanted and (taken < most).any():
        taken[np.argmax(np.where(taken < most, due - taken, -np.inf))] += 1
    return taken


def _parted(rows: int, held: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    test = np.sort(np.concatenate(held)) if held else np.empty(0, np.int64)
    return np.setdiff1d(np.arange(rows), test), test
