"""The first round that reaches a target."""

from __future__ import annotations

from fewfed.diagnostics.rounds_to_target import rounds_to

RECORDS = [
    {"round": 1, "accuracy": 0.1},
    {"round": 2},
    {"round": 3, "accuracy": 0.5},
    {"round": 4, "accuracy": 0.4},
    {"round": 5, "accuracy": 0.6},
]


def test_first_round_at_or_above() -> None:
    assert rounds_to(0.5, RECORDS) == 3
    assert rounds_to(0.51, RECORDS) == 5
    assert rounds_to(0.0, RECORDS) == 1


def test_never_reached() -> None:
    assert rounds_to(0.7, RECORDS) is None
    assert rounds_to(0.7, []) is None
