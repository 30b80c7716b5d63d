"""Metrics that are read on from where they were read last, and still checked."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from live_runs import FOR_EVER, Writer, line

from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.storage import Damaged
from fewfed.report.live.rounds_file import RoundsFile
from fewfed.runs.folder import CONFIG, METRICS, RunFolder
from fewfed.runs.seals import linked, read_sealed


def start_of(folder: Path) -> str:
    return read_sealed(OwnFolder(folder) / CONFIG)[1]


def read_on(file: RoundsFile, folder: Path, until: float = FOR_EVER) -> list[dict[str, Any]]:
    return file.read_on(OwnFolder(folder), start_of(folder), until)[0]


def test_what_is_appended_is_read_and_nothing_twice(tmp_path: Path) -> None:
    writer, file = Writer(tmp_path / "run").go_on(3), RoundsFile()
    assert read_on(file, writer.folder) == RunFolder(writer.folder).metrics()
    first = file.records[0]
    writer.go_on(4)
    assert read_on(file, writer.folder) == RunFolder(writer.folder).metrics()
    assert file.records[0] is first
    assert len(file.records) == 7


def test_a_line_without_its_end_is_not_there_yet(tmp_path: Path) -> None:
    writer, file = Writer(tmp_path / "run").go_on(2), RoundsFile()
    path = writer.folder / METRICS
    whole = path.read_bytes()
    for end in range(len(whole) - 400, len(whole)):
        path.write_bytes(whole[:end])
        assert [one["round"] for one in read_on(file, writer.folder)] == [1]
        assert file.part == 1.0
    path.write_bytes(whole)
    assert [one["round"] for one in read_on(file, writer.folder)] == [1, 2]


@pytest.mark.parametrize("place", [0.1, 0.5, 0.95])
def test_damage_is_found_in_what_was_read_before(tmp_path: Path, place: float) -> None:
    writer, file = Writer(tmp_path / "run").go_on(5), RoundsFile()
    read_on(file, writer.folder)
    content = bytearray((writer.folder / METRICS).read_bytes())
    at = content.index(b"accuracy", int(place * len(content) - 700))
    content[at : at + 8] = b"accurate"
    with open(writer.folder / METRICS, "r+b") as opened:  # In place: the inode stays.
        opened.write(content)
    with pytest.raises(Damaged, match="digests do not fit"):
        read_on(file, writer.folder)


def test_a_line_that_does_not_follow_is_damage(tmp_path: Path) -> None:
    writer, file = Writer(tmp_path / "run").go_on(2), RoundsFile()
    read_on(file, writer.folder)
    with open(writer.folder / METRICS, "ab") as opened:
        opened.write(linked(line(3), "another chain")[0])
    with pytest.raises(Damaged, match="digests do not fit"):
        read_on(file, writer.folder)


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    """As resuming does: rounds after the checkpoint are dropped and made again, with other times."""
    writer, file = Writer(tmp_path / "run").go_on(6), RoundsFile()
    read_on(file, writer.folder)
    fresh = Writer(tmp_path / "again", seconds=3.0).go_on(9)
    os.replace(fresh.folder / METRICS, writer.folder / METRICS)
    assert [one["seconds"] for one in read_on(file, writer.folder)] == [3.0] * 9


def test_a_file_that_shrank_or_left_is_read_anew(tmp_path: Path) -> None:
    writer, file = Writer(tmp_path / "run").go_on(6), RoundsFile()
    read_on(file, writer.folder)
    lines = (writer.folder / METRICS).read_bytes().splitlines(keepends=True)
    with open(writer.folder / METRICS, "r+b") as opened:
        opened.truncate(sum(len(each) for each in lines[:2]))
    assert len(read_on(file, writer.folder)) == 2
    (writer.folder / METRICS).unlink()
    assert read_on(file, writer.folder) == []


def test_reading_stops_in_time_and_goes_on(tmp_path: Path) -> None:
    writer, file = Writer(tmp_path / "run", rounds=3000).go_on(3000), RoundsFile()
    looks = 0
    while file.part < 1.0 or not looks:
        began = time.monotonic()
        read_on(file, writer.folder, began + 0.01)
        assert time.monotonic() - began < 1.0
        looks += 1
        assert looks < 3000
    assert looks > 2
    assert [one["round"] for one in file.records] == list(range(1, 3001))


def test_a_line_longer_than_what_is_read_at_once_is_read(tmp_path: Path) -> None:
    writer, file = Writer(tmp_path / "run").go_on(1), RoundsFile()
    writer.run.append({**line(2), "long": "x" * (5 << 20)})
    writer.done = 2
    writer.go_on()
    assert [one["round"] for one in read_on(file, writer.folder)] == [1, 2, 3]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some.lists(some.integers(1, 900), min_size=1, max_size=25))
def test_however_the_file_grows_the_same_is_read(tmp_path: Path, steps: list[int]) -> None:
    source = tmp_path / "source"
    if not source.exists():
        Writer(source).go_on(8)
    content, grown = (source / METRICS).read_bytes(), tmp_path / "grown"
    grown.mkdir(exist_ok=True)
    (grown / METRICS).unlink(missing_ok=True)
    file, end = RoundsFile(), 0
    for step in steps:
        with open(grown / METRICS, "ab") as opened:
            opened.write(content[end : end + step])
        end = min(len(content), end + step)
        found, chain = file.read_on(OwnFolder(grown), start_of(source), FOR_EVER)
        whole = content[:end].split(b"\n")[:-1]
        assert [one["round"] for one in found] == [json.loads(each)["round"] for each in whole]
        assert chain == (json.loads(whole[-1])["chain"] if whole else start_of(source))
