"""The disk is full: at a site, and at the coordinator. The disk is a small one in memory, mounted by the test.

Needs the right to mount (root): where that is missing these tests cannot run, and say so.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from disturbed import Disturbed, assert_equals, assert_worked, missing, reference

from fewfed.runs.folder import RunFolder

FILLING = "filling"


@contextmanager
def small_disk(place: Path, megabytes: int) -> Iterator[Path]:
    """A disk of its own at this place."""
    place.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(place)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if mounted.returncode:
        pytest.skip(f"this machine lets nobody mount a small disk: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> None:
    with (disk / FILLING).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass


def empty(disk: Path) -> None:
    (disk / FILLING).unlink()


def test_the_coordinators_disk_is_full(trio: Disturbed, tmp_path: Path) -> None:
    with small_disk(trio.folder / "full", 16) as disk:
        trio.serve("full")
        trio.wait_round("full", 2)
        fill(disk)
        said = trio.ended("full")
        assert "No space left on device" in said
        assert len(RunFolder(disk).metrics()) >= 2, "what is finished is there"
        empty(disk)
        trio.again("full")
        found = trio.finished("full")
        assert_equals(found, reference(tmp_path / "reference"))
        assert_worked(trio, "full", twice=0)


@pytest.mark.thorough
def test_a_sites_disk_is_full_for_a_while(trio: Disturbed, tmp_path: Path) -> None:
    """Its turns fail and the others go on; also the SuperLink is killed meanwhile, so that it connects anew."""
    with small_disk(trio.folder / "small", 8) as disk:
        trio.kill("cedar")
        trio.start_site("cedar", "--state", "small/cedar")
        try:
            trio.serve("site-full", "scaffold", rounds=30, quorum=2)
            trio.wait_round("site-full", 2)
            fill(disk)
            trio.wait_log("cedar", "No space left on device")
            os.kill(trio.superlink("site-full"), signal.SIGKILL)
            failures = trio.log("cedar").count("No space left on device")
            trio.wait_log("cedar", "No space left on device", failures + 2)  # It connects anew, and fails again.
            empty(disk)
            found = trio.finished("site-full")
            left_out = missing(found)
            assert {site for _, _, site in left_out} == {"cedar"}
            assert max(round for round, _, _ in left_out) < 29, "it takes part again"
            reasons = {failed["reason"] for record in RunFolder(found).metrics() for failed in record["failed"]}
            assert all("No space left on device" in reason for reason in reasons), reasons
            assert_equals(found, reference(tmp_path / "reference", left_out, 30, "scaffold"), scored=False)
        finally:
            trio.end("cedar")
