from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

import pytest
import torch

from fewfed.engine.executors.workers.heap import keep_freed_memory

ROUNDS, ARRAYS, MEGABYTES = 20, 6, 16
GROWING = 5
"""Steps until the heap is as large as it gets: arrays first fill gaps that what came before left in it."""


PAGES = (MEGABYTES << 20) // resource.getpagesize()
"""Of one array."""


def step() -> int:
    """Several large arrays at once, and then none; the pages that went back to the system with them."""
    arrays = [torch.zeros(MEGABYTES << 18) for _ in range(ARRAYS)]
    held = resident()
    del arrays
    return held - resident()


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def faults_of_reusing(keep: bool) -> tuple[int, int]:
    """Page faults of a child that asks for the same memory again and again, and pages it gave back in between."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        done = keep_freed_memory() if keep else True
        given_back = sum(step() for _ in range(GROWING))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        given_back += sum(step() for _ in range(ROUNDS))
        count = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        os.write(theirs, f"{count if done else -1} {given_back}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    faults, given_back = os.read(ours, 100).split()
    return int(faults), int(given_back)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_freed_memory_is_used_again_without_asking_the_system() -> None:
    faults, given_back = faults_of_reusing(keep=True)
    assert 0 <= faults < ROUNDS * ARRAYS * PAGES / 15
    assert given_back < PAGES
