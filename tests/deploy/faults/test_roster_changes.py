"""Sites that are taken off the roster, or put on it, while a run is not finished."""

from __future__ import annotations

import shutil
from pathlib import Path

from disturbed import Disturbed, assert_equals, missing, reference


def test_a_run_goes_on_without_a_site_that_was_removed_and_without_one_that_was_added(
    trio: Disturbed, tmp_path: Path
) -> None:
    keys, before = trio.folder / "keys", tmp_path / "keys"
    shutil.copytree(keys, before)
    try:
        trio.serve("removed", "fedavg", 6, quorum=2)
        trio.wait_round("removed", 2)
        trio.kill("removed")
        for change in (("--remove", "cedar"), ("--sites", "dover")):
            assert trio.fewfed("certs", "keys", *change).returncode == 0
        trio.again("removed")
        found = trio.finished("removed")
    finally:
        shutil.rmtree(keys)
        shutil.move(before, keys)
    assert "site 'cedar' is not on the roster any more: the run goes on without it" in trio.log("removed")
    assert "site 'dover' was added after this run began: it can take part in the next one" in trio.log("removed")
    left_out = missing(found)
    assert {site for _, _, site in left_out} == {"cedar"}
    rounds = sorted({round for round, _, _ in left_out})
    assert rounds == list(range(rounds[0], 6))
    assert rounds[0] >= 1, "at most the round in flight is taken again without it"
    assert_equals(found, reference(tmp_path / "reference", left_out, 6, "fedavg"), scored=False)
    assert "not on the roster any more" in trio.status("removed")


def test_too_few_sites_are_left_for_the_quorum(trio: Disturbed, tmp_path: Path) -> None:
    keys, before = trio.folder / "keys", tmp_path / "keys"
    shutil.copytree(keys, before)
    try:
        trio.serve("too-few", "fedavg", 4, quorum=3)
        trio.wait_round("too-few", 1)
        trio.kill("too-few")
        assert trio.fewfed("certs", "keys", "--remove", "cedar").returncode == 0
        trio.again("too-few")
        said = trio.ended("too-few")
        assert "without cedar, which the roster lacks, there are fewer sites than the quorum of 3" in said
    finally:
        shutil.rmtree(keys)
        shutil.move(before, keys)
    trio.again("too-few")  # With the roster as it was it goes on.
    assert missing(trio.finished("too-few")) == set()


def test_a_finished_run_is_told_at_once_and_with_other_settings_refused_at_once(trio: Disturbed) -> None:
    """Neither waits for sites."""
    trio.serve("finished", "fedavg", 1)
    trio.finished("finished")
    again = trio.fewfed("serve", "finished.toml", "--out", "finished", "--resume")
    assert again.returncode == 0
    assert "amber" in again.stdout
    assert "waiting for sites" not in again.stderr
    file = trio.folder / "finished.toml"
    file.write_text(file.read_text().replace("rounds = 1", "rounds = 2"))
    other = trio.fewfed("serve", "finished.toml", "--out", "finished", "--resume")
    assert other.returncode == 2
    assert "holds a run with other settings" in other.stderr
    assert "waiting for sites" not in other.stderr
