"""Strikes are noted with their reasons; too many leave a site out for a while."""

from __future__ import annotations

import json

import pytest

from fewfed.deploy.security.strikes import StrikeBook, StrikeRule
from fewfed.errors import ConfigError, RunError


def book(strikes: int = 3, rounds: int = 5) -> StrikeBook:
    times = iter(range(10_000))
    return StrikeBook(StrikeRule(strikes, rounds), clock=lambda: float(next(times)))


def test_so_many_strikes_are_a_quarantine_of_so_many_rounds() -> None:
    strikes = book()
    assert [strikes.note("a", round, "train", "signature", "bad") for round in (1, 2, 4)] == [False, False, True]
    assert not strikes.quarantined("b", 4)
    assert [round for round in range(4, 20) if strikes.quarantined("a", round)] == [4, 5, 6, 7, 8, 9]
    assert strikes.until("a") == 10
    # After it, the count begins anew.
    assert [strikes.note("a", 10, "train", "x", "y") for _ in range(3)] == [False, False, True]
    assert strikes.until("a") == 16
    assert strikes.total("a") == 6


def test_strikes_in_quarantine_count_for_the_record_only() -> None:
    strikes = book()
    for _ in range(3):
        strikes.note("a", 1, "train", "x", "y")
    assert not strikes.note("a", 2, "train", "x", "y")
    assert (strikes.until("a"), strikes.total("a")) == (7, 4)


def test_without_rounds_it_does_not_end() -> None:
    strikes = book(rounds=0)
    for _ in range(3):
        strikes.note("a", 1, "train", "x", "y")
    assert strikes.quarantined("a", 10**9)
    assert strikes.until("a") is None


def test_what_a_site_wrote_is_fit_for_a_terminal() -> None:
    strikes = book()
    strikes.note("a", 0, "tr\x1b[2Jain", "x", "bad\nline\x07" + "y" * 5000)
    (strike,) = strikes.strikes("a")
    assert strike.phase == "tr?[2Jain"
    assert strike.reason.startswith("bad?line?yy")
    assert len(strike.reason) < 320
    assert strike.time == 0.0


def test_memory_is_bounded_and_the_count_is_not_lost() -> None:
    strikes = book(strikes=10**6)
    for round in range(500):
        strikes.note("a", round, "train", "x", str(round))
    assert strikes.total("a") == 500
    assert [each.reason for each in strikes.strikes("a")] == [str(round) for round in range(450, 500)]


def test_it_survives_json() -> None:
    strikes = book()
    for site in ("a", "a", "a", "b", "c"):
        strikes.note(site, 2, "train", "body", "altered")
    back = StrikeBook.from_json(json.loads(json.dumps(strikes.as_json())))
    assert back.as_json() == strikes.as_json()
    assert back.quarantined("a", 7)
    assert back.note("b", 3, "train", "x", "y") is False
    assert back.note("b", 3, "train", "x", "y") is True


@pytest.mark.parametrize(
    "odd", [{}, {"rule": {}, "sites": 3}, {"rule": {"x": 1}, "sites": {}}, {"rule": {}, "sites": {"a": {}}}]
)
def test_an_odd_book_is_an_error_in_one_sentence(odd: dict[str, object]) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        StrikeBook.from_json(odd)


@pytest.mark.parametrize("rule", [{"strikes": 0}, {"rounds": -1}, {"strikes": 1.5}, {"strikes": True}])
def test_odd_rules_are_refused(rule: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected a whole number"):
        StrikeRule(**rule)
