"""The released FLea partitions (NumPy legacy seed 1), matrix by matrix.

The two HAR Dir(0.1) ones need 14 826 and 52 172 attempts: a few seconds each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewfed.data.splits import DirichletOptions, make_split, released_options
from fewfed.errors import ConfigError

GOLDEN = json.loads(Path(__file__).with_name("golden_partitions.json").read_text())


def labels_of(parts: list[list[int]]) -> np.ndarray:
    """Labels with the right class sizes in each contiguous part of the file."""
    return np.concatenate([np.repeat(np.arange(len(sizes)), sizes) for sizes in parts])


def partitions() -> list[Any]:
    """All of them; the one that is drawn anew for fourteen seconds only in thorough runs."""
    slow = ("ucihar", "dir:0.1", 150)
    return [
        pytest.param(
            golden,
            id=f"{golden['data']}-{golden['rule']}-{golden['clients']}",
            marks=[pytest.mark.thorough] if (golden["data"], golden["rule"], golden["clients"]) == slow else [],
        )
        for golden in GOLDEN["partitions"]
    ]


@pytest.mark.parametrize("golden", partitions())
def test_released_partition_is_reproduced(golden: dict[str, Any]) -> None:
    labels = labels_of(GOLDEN["class_sizes"][golden["data"]])
    classes = int(labels.max()) + 1
    name, value = golden["rule"].split(":")
    options = released_options(golden["data"], golden["clients"], float(value)) if name == "dir" else None
    split = make_split(golden["rule"], labels, classes, golden["clients"], seed=0, legacy_seed=1, options=options)
    manifest = split.manifest(labels, classes)
    counts = split.counts(labels, classes)
    assert counts[:6].tolist() == golden["first_rows"]
    assert manifest["counts_digest"].startswith(golden["counts_sha256_prefix"])
    sizes = split.sizes
    assert [sizes.min(), np.median(sizes), sizes.max()] == golden["smallest_median_largest"]
    assert np.array_equal(np.sort(split.order), np.arange(len(labels)))
    if golden["attempts"] is not None:
        assert split.attempts == golden["attempts"]


def test_har_sizes_start_as_in_the_released_log() -> None:
    golden = next(g for g in GOLDEN["partitions"] if g["counts_sha256_prefix"] == "415535802ba20283")
    assert [sum(row) for row in golden["first_rows"]] == [11, 14, 68, 34, 42, 31]


def test_rows_follow_the_written_rule_call_by_call() -> None:
    """A second, literal writing of flea 3.4 with Python lists gives the same rows, not only the same counts."""
    labels = np.random.default_rng(7).integers(0, 4, 600)
    clients, mu, min_size = 12, 0.5, 4
    state = np.random.RandomState(3)
    while True:
        held: list[list[int]] = [[] for _ in range(clients)]
        for label in range(4):
            members = np.flatnonzero(labels == label)
            state.shuffle(members)
            p = state.dirichlet([mu] * clients)
            p = np.array([q * (len(rows) < len(labels) / clients) for q, rows in zip(p, held, strict=True)])
            ends = [int(v) for v in np.cumsum(p / p.sum()) * len(members)][:-1]
            for rows, part in zip(held, np.split(members, ends), strict=True):
                rows.extend(part.tolist())
        if min(map(len, held)) >= min_size:
            break
    for rows in held:
        state.shuffle(rows)
    options = DirichletOptions(min_size=min_size, slices=1)
    split = make_split(f"dir:{mu}", labels, 4, clients, seed=0, legacy_seed=3, options=options)
    assert [split.rows(k).tolist() for k in range(clients)] == held


def test_released_settings() -> None:
    cases = {
        ("cifar10", 1000, 0.5): (10, 10, "class"),
        ("CIFAR-10", 500, 0.1): (3, 5, "class"),
        ("cifar10", 100, 0.1): (10, 1, "class"),
        ("urbansound8k", 140, 0.5): (10, 1, "class"),
        ("har", 150, 0.3): (6, 1, "class"),
        ("uci-har", 75, 0.1): (6, 1, "class"),
        ("har", 150, 0.1): (3, 2, "order"),
    }
    for (name, clients, mu), expected in cases.items():
        options = released_options(name, clients, mu)
        assert (options.min_size, options.slices, options.slice_by) == expected
    with pytest.raises(ConfigError, match="cifar10"):
        released_options("cifar", 10, 0.1)


@pytest.mark.parametrize("legacy_seed", [None, 1])
def test_impossible_minimum_raises_after_bounded_attempts(legacy_seed: int | None) -> None:
    us8k = np.repeat(np.arange(10), [810, 323, 791, 808, 807, 794, 296, 806, 726, 825])
    options = DirichletOptions(min_size=10, slices=1, max_attempts=300)
    with pytest.raises(ConfigError, match=r"at least 10 rows each was found in 300 attempts.*smallest client of \d"):
        make_split("dir:0.1", us8k, 10, 140, seed=0, legacy_seed=legacy_seed, options=options)
