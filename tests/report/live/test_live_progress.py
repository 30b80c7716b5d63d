"""Time left, against an independent simulation; and what is said where it cannot be known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fewfed.report.live.progress import Pace, in_words, left_of, left_of_all, outlook, pace_of


def running(done: int = 4, seconds: float | None = 2.0, group: str = "all", **more: object) -> Pace:
    return Pace(group, "fedavg", "running", done, 10, seconds, **more)  # type: ignore[arg-type]


def waiting(method: str = "fedavg", rounds: int = 10, group: str = "all") -> Pace:
    return Pace(group, method, "waiting", 0, rounds)


def test_a_run_takes_its_pace_for_every_round_that_is_left() -> None:
    assert left_of(running(4)) == 12.0
    assert left_of(running(4, quiet=1.5)) == 10.5
    assert left_of(running(10)) == 0.0
    assert left_of(running(11)) == 0.0  # Somebody raised the number of rounds and took it back.


def test_nothing_is_foretold_that_cannot_be_known() -> None:
    assert left_of(running(0, None)) is None
    assert left_of(Pace("all", "fedavg", "running", 3, None, 2.0)) is None
    assert left_of(Pace("all", "fedavg", "stopped", 3, 10, 2.0)) is None
    assert left_of_all([]) is None
    assert left_of_all([Pace("all", "fedavg", "stopped", 3, 10, 2.0), waiting()]) is None
    assert left_of_all([running(0, None), waiting()]) is None


def test_a_run_that_shows_no_round_for_long_is_not_believed() -> None:
    assert left_of(running(4, quiet=61)) is None
    assert outlook(running(4, quiet=240)) == "no round for about 4 min"
    assert left_of(running(4, seconds=100.0, quiet=400)) == 500.0
    assert left_of_all([running(4, quiet=61), running()]) is None


def test_runs_side_by_side_end_with_the_last_and_others_take_their_places() -> None:
    assert left_of_all([running(4), running(1)]) == 18.0
    # Two lanes, free after 12 and 18 s; a run takes 20 s: ends at 32 and 38, the third at 52.
    assert left_of_all([running(4), running(1), waiting(), waiting(), waiting()]) == 52.0


def test_what_waits_is_judged_by_its_own_method_first() -> None:
    slow = Pace("all", "flea", "finished", 10, 10, 30.0)
    assert left_of_all([running(10), slow, waiting("flea")]) == 300.0
    assert left_of_all([running(10), slow, waiting("other")]) == 160.0


def test_comparisons_do_not_take_turns_with_each_other() -> None:
    assert left_of_all([running(4), waiting(), running(9, group="b")]) == 32.0


@given(some.lists(some.integers(0, 9), min_size=1, max_size=5), some.lists(some.integers(1, 20), max_size=30))
def test_the_end_is_that_of_a_simulation_second_by_second(done: list[int], rounds: list[int]) -> None:
    lanes, queue, time = [2 * (10 - each) for each in done], [2 * each for each in rounds], 0
    while any(lanes) or queue:
        lanes = [each or (queue.pop(0) if queue else 0) for each in lanes]
        lanes = [max(0, each - 1) for each in lanes]
        time += 1
    found = left_of_all([*(running(each) for each in done), *(waiting(rounds=each) for each in rounds)])
    assert found == time


def test_the_pace_is_that_of_the_last_rounds_without_the_first_of_all() -> None:
    assert pace_of([]) is None
    assert pace_of([9.0]) == 9.0
    assert pace_of([100.0, 1.0, 3.0]) == 2.0
    assert pace_of([5.0] * 50 + [1.0] * 20) == 1.0
    assert pace_of([1.0, math.nan, math.inf, -3.0]) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, ""), (math.inf, ""), (3, "a few seconds"), (44, "about 40 s"), (94, "about 90 s"), (100, "about 2 min"),
     (250, "about 4 min"), (5399, "about 90 min"), (3 * 3600 + 5, "about 3 h"), (86400 * 9, "about 9 days")],
)  # fmt: skip
def test_a_time_is_said_as_roughly_as_it_is_known(seconds: float | None, words: str) -> None:
    assert in_words(seconds) == words
