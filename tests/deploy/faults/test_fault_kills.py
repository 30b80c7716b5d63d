"""kill -9: of a site, the coordinator, the SuperLink, in the middle of a phase."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from disturbed import Disturbed, assert_equals, assert_worked, missing, pause, reference


def test_a_site_is_killed_in_a_phase_and_is_back_at_once(trio: Disturbed, tmp_path: Path) -> None:
    trio.serve("back-at-once")
    trio.wait_round("back-at-once", 1)
    trio.hold("cedar")  # Whatever phase comes next now waits for it.
    pause(1.0)
    trio.kill("cedar")
    trio.start_site("cedar")
    found = trio.finished("back-at-once")
    assert missing(found) == set()
    assert_equals(found, reference(tmp_path / "reference"))
    assert_worked(trio, "back-at-once", twice=1)


def test_a_site_is_killed_and_is_back_later(trio: Disturbed, tmp_path: Path) -> None:
    """Rounds go on without it, and with it again; its state is what it was when it left."""
    trio.serve("back-later", "scaffold", rounds=12, quorum=2, deadline=3.0)
    trio.wait_round("back-later", 2)
    trio.kill("cedar")
    trio.wait_round("back-later", 4)
    with trio.still("back-later"):  # Rounds without it are quick: it would miss them all.
        connected = trio.log("cedar").count("connected to")
        trio.start_site("cedar")
        trio.wait_log("cedar", "connected to", connected + 1)
    found = trio.finished("back-later")
    left_out = missing(found)
    assert {site for _, _, site in left_out} == {"cedar"}
    rounds = sorted({round for round, _, _ in left_out})
    assert rounds == list(range(rounds[0], rounds[-1] + 1)), "it was away once"
    assert 2 <= rounds[0] <= rounds[-1] < 11, "and took part before and after"
    assert_equals(found, reference(tmp_path / "reference", left_out, 12, "scaffold"), scored=False)


@pytest.mark.thorough
def test_a_site_is_killed_and_never_comes_back(trio: Disturbed, tmp_path: Path) -> None:
    trio.serve("never-back", quorum=2, deadline=3.0)
    trio.wait_round("never-back", 1)
    trio.kill("birch")
    found = trio.finished("never-back")
    left_out = missing(found)
    assert {site for _, _, site in left_out} == {"birch"}
    assert max(round for round, _, _ in left_out) == 3
    assert_equals(found, reference(tmp_path / "reference", left_out), scored=False)
    assert "turns of sites were left out" in trio.log("never-back")
    sites = {row["site"]: row for row in json.loads((found / "scores.json").read_text())["per_site"]}
    assert sites["birch"]["accuracy"] is None
    assert sites["amber"]["accuracy"] is not None


@pytest.mark.thorough
def test_without_a_quorum_the_run_ends_with_a_sentence_and_goes_on_later(trio: Disturbed, tmp_path: Path) -> None:
    trio.serve("no-quorum", deadline=2.0, federation="give_up = 6")
    trio.wait_round("no-quorum", 2)
    trio.kill("amber")
    said = trio.ended("no-quorum")
    assert "fewer than the quorum of 3" in said
    assert "no answer from amber" in said
    assert "--resume" in said
    trio.start_site("amber")
    trio.again("no-quorum")
    found = trio.finished("no-quorum")
    assert_equals(found, reference(tmp_path / "reference"))
    assert_worked(trio, "no-quorum", twice=1)


@pytest.mark.thorough
def test_the_coordinator_is_killed_in_a_phase_and_resumed(trio: Disturbed, tmp_path: Path) -> None:
    trio.serve("coordinator")
    trio.wait_round("coordinator", 1)
    trio.hold("cedar")
    trio.wait_turn("amber", "coordinator", 2)
    trio.kill("coordinator")
    trio.let_go("cedar")
    trio.again("coordinator")
    found = trio.finished("coordinator")
    assert_equals(found, reference(tmp_path / "reference"))
    assert_worked(trio, "coordinator", twice=0)


@pytest.mark.thorough
def test_the_superlink_is_killed_in_a_phase(trio: Disturbed, tmp_path: Path) -> None:
    trio.serve("superlink")
    trio.wait_round("superlink", 1)
    trio.hold("cedar")
    trio.wait_turn("amber", "superlink", 2)
    os.kill(trio.superlink("superlink"), signal.SIGKILL)
    trio.wait_log("superlink", "started again")
    trio.let_go("cedar")
    found = trio.finished("superlink")
    assert_equals(found, reference(tmp_path / "reference"))
    assert_worked(trio, "superlink", twice=0)
