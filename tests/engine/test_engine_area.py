"""Shared memory is there before it is used: where it runs out, a disk is used, and then a sentence is said."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest
import torch
from processes import open_files

from fewfed.conformance.differences import differences
from fewfed.engine.executors.workers.area import Area
from fewfed.engine.executors.workers.channel import Channel
from fewfed.errors import RunError

Patch = pytest.MonkeyPatch
NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refusing(where: Callable[[str], bool], error: OSError) -> Callable[[int, int, int], None]:
    """As `posix_fallocate` does on a file system that has nothing left."""
    take = os.posix_fallocate

    def fallocate(fd: int, first: int, size: int) -> None:
        if where(os.readlink(f"/proc/self/fd/{fd}")):
            raise error
        take(fd, first, size)

    return fallocate


def places() -> list[str]:
    return [target for target in open_files().values() if target.endswith("(deleted)")]


def test_all_of_an_area_is_there_before_it_is_used() -> None:
    area = Area()
    area.reserve(10_000_000)
    found = os.fstat(area.fd)
    assert found.st_blocks * 512 >= found.st_size >= 10_000_000
    area.close()


def test_without_room_in_memory_an_area_is_on_a_disk(monkeypatch: Patch) -> None:
    monkeypatch.setattr("os.posix_fallocate", refusing(lambda path: path.startswith("/dev/shm"), NO_SPACE))
    before, ends = places(), Channel.pair()
    arrays = {"x": torch.arange(100_000)}
    ends[0].send({}, arrays)
    assert not differences(ends[1].receive()[1], arrays)
    new = places()[len(before) :]
    assert new
    assert not any(target.startswith("/dev/shm") for target in new)
    for end in ends:
        end.close()


def test_without_any_room_there_is_a_sentence_and_nothing_is_left_open(monkeypatch: Patch) -> None:
    before = set(open_files())
    monkeypatch.setattr("os.posix_fallocate", refusing(lambda path: True, NO_SPACE))
    with pytest.raises(RunError, match=r"no room for 12 MiB .*No space left.*TMPDIR.*--executor sequential"):
        Area().reserve(10_000_000)
    assert set(open_files()) == before


def test_a_file_system_that_cannot_set_bytes_aside_is_used_as_it_is(monkeypatch: Patch) -> None:
    unknown = OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    monkeypatch.setattr("os.posix_fallocate", refusing(lambda path: True, unknown))
    area = Area()
    assert len(area.reserve(1000)) >= 1000
    area.close()


def test_systems_without_such_a_call_are_used_as_they_are(monkeypatch: Patch) -> None:
    monkeypatch.delattr("os.posix_fallocate")
    area = Area()
    assert len(area.reserve(1000)) >= 1000
    area.close()


def test_types_that_do_not_travel_are_refused_before_they_are_sent() -> None:
    ends = Channel.pair()
    with pytest.raises(RunError, match=r"'a/b' is of torch.complex64: expected one of torch.float32"):
        ends[0].send({}, {"a": {"b": torch.zeros(2, dtype=torch.complex64)}})
    for end in ends:
        end.close()
