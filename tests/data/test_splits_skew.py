from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fewfed.data import skew
from fewfed.errors import ConfigError

COUNTS = np.array([[50, 0], [0, 51]])


def test_sparsity_counts_zeros_and_scarcity_leaves_fifty_out() -> None:
    """SEM's authors print 0.30 for their CIFAR-10 file at alpha 0.1: 30 clients with fewer than 50 rows, 31 with 50."""
    assert skew.sparsity(COUNTS) == 0.5
    assert skew.scarcity(COUNTS) == 0
    assert skew.scarcity(COUNTS, few=51) == 0.5
    assert skew.scarcity(COUNTS, few=52) == 1
    assert skew.mean_classes(COUNTS) == 1


def test_size_summary() -> None:
    summary = skew.size_summary(np.array([[1, 0], [2, 2], [10, 0], [5, 5]]))
    assert (summary.smallest, summary.median, summary.mean, summary.largest) == (1, 7, 6.25, 10)


@pytest.mark.parametrize(("clients", "classes"), [(3, 4), (30, 10), (2, 500)])
def test_picture_keeps_to_its_width_and_names_what_is_missing(clients: int, classes: int) -> None:
    counts = np.random.default_rng(0).integers(0, 40, (clients, classes))
    lines = skew.picture(counts, width=60, clients=20).splitlines()
    assert max(map(len, lines)) <= 60
    drawn = [line for line in lines if "|" in line]
    assert len(drawn) == min(clients, 20)
    assert ("10 more clients not shown" in lines) == (clients == 30)
    assert any("more classes not shown" in line for line in lines) == (classes == 500)


def test_picture_shows_a_single_row_and_the_fullest_cell() -> None:
    cells = skew.picture(np.array([[0, 1, 1000]])).splitlines()[0].split("|")[1]
    assert cells[::2] == skew.SHADES[0] + skew.SHADES[1] + skew.SHADES[-1]


@pytest.mark.parametrize("clients", [5, 200])
def test_plot_writes_a_picture(tmp_path: Path, clients: int) -> None:
    path = tmp_path / "split.png"
    skew.plot_split(np.random.default_rng(0).integers(0, 9, (clients, 10)), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_plot_explains_an_unknown_format_and_a_missing_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cannot draw"):
        skew.plot_split(COUNTS, tmp_path / "split.nonsense")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"fewfed\[plot\]"):
        skew.plot_split(COUNTS, tmp_path / "split.png")
