from __future__ import annotations

import os
import platform
import resource

import pytest
import torch

from fewfed.engine.heap import keep_freed_memory

ROUNDS, ARRAYS, MEGABYTES = 20, 6, 16


def step() -> None:
    """Several large arrays at once, and then none."""
    [torch.zeros(MEGABYTES << 18) for _ in range(ARRAYS)]


def faults_of_reusing(keep: bool) -> int:
    """Page faults of a child that asks for the same memory again and again."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        torch.set_num_threads(1)
        done = keep_freed_memory() if keep else True
        step()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(ROUNDS):
            step()
        count = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        os.write(theirs, str(count if done else -1).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return int(os.read(ours, 100))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has the setting")
def test_freed_memory_is_used_again_without_asking_the_system() -> None:
    pages = ROUNDS * ARRAYS * (MEGABYTES << 20) // resource.getpagesize()
    assert 0 <= faults_of_reusing(keep=True) < pages / 15
