"""Which settings of a frontier no other beats, by brute force; its table and its picture."""

from __future__ import annotations

import csv
import io
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewfed.metric import METRICS
from fewfed.report.frontier import Cost, Point, best_points, costs_of, rich_table, to_csv, write
from fewfed.report.rendering import as_text
from fewfed.report.table import Spread


def point(number: int, score: float, **costs: float) -> Point:
    made = {name: Cost(Spread(value, None), not name.startswith("error")) for name, value in costs.items()}
    return Point({"k": number}, Spread(score, None), made)


numbers = st.integers(0, 4)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8))
def test_points_that_none_beats_are_those_that_brute_force_finds(pairs: list[tuple[int, int]]) -> None:
    points = [point(n, score, leak=cost) for n, (score, cost) in enumerate(pairs)]
    beaten = set()
    for (a, (score, cost)), (_, (better, cheaper)) in itertools.permutations(enumerate(pairs), 2):
        if (better > score and cheaper <= cost) or (better >= score and cheaper < cost):
            beaten.add(a)
    assert best_points(points, "leak", METRICS["accuracy"]) == set(range(len(pairs))) - beaten


def test_an_error_is_the_better_the_larger_and_a_loss_the_smaller() -> None:
    points = [point(1, 0.5, error=3.0), point(2, 0.5, error=1.0)]
    assert best_points(points, "error", METRICS["accuracy"]) == {0}
    lower = [point(1, 0.5, leak=1.0), point(2, 0.1, leak=1.0)]
    assert best_points(lower, "leak", METRICS["loss"]) == {1}


def test_a_measure_that_a_setting_lacks_is_an_empty_cell_and_no_zero() -> None:
    points = [point(1, 0.9, leak=1.0, bytes=3.0), point(2, 0.8, bytes=2.0)]
    rows = list(csv.DictReader(io.StringIO(to_csv(points))))
    assert [row["leak"] for row in rows] == ["1", ""]
    assert [row["bytes not beaten"] for row in rows] == ["1", "1"]
    assert "k=2" in as_text(rich_table(points, "title"), [])


def test_costs_of_seeds_are_means_and_what_one_seed_lacks_is_left_out() -> None:
    found = costs_of([{"a": (1.0, True), "b": (2.0, False)}, {"a": (3.0, True)}])
    assert found.keys() == {"a"}
    assert found["a"].spread == Spread.of([1.0, 3.0])
    assert costs_of([]) == {}


def test_the_picture_has_a_panel_for_every_measure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = [point(n, 0.5 + n / 10, leak=n, bytes=5 - n, error=n) for n in range(4)]
    picture = write(points, tmp_path, "digits")
    assert picture is not None
    text = picture.read_text()
    assert text.startswith("<?xml")
    assert (tmp_path / "frontier.csv").exists()
