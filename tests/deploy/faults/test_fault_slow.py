"""A site that is too slow: it is left out of what it misses, and its late answer harms nobody."""

from __future__ import annotations

from pathlib import Path

from disturbed import Disturbed, assert_equals, missing, pause, reference


def test_a_site_misses_the_deadline_and_catches_up(trio: Disturbed, tmp_path: Path) -> None:
    trio.serve("slow", rounds=12, quorum=2, deadline=2.5)
    trio.wait_round("slow", 1)
    trio.hold("birch")
    trio.wait_round("slow", 3)
    with trio.still("slow"):  # Rounds without it are quick: it would miss them all.
        trio.let_go("birch")
        pause(3.0)
    found = trio.finished("slow")
    left_out = missing(found)
    assert {site for _, _, site in left_out} == {"birch"}
    assert_equals(found, reference(tmp_path / "reference", left_out, 12), scored=False)
    assert max(round for round, _, _ in left_out) < 11, "it takes part again"
    assert "refused" not in trio.log("slow"), "to be late is no misdeed"
    assert '"strikes": 0' in trio.status("slow")
