"""How many runs at once: memory and throughput decide, told by stand-ins."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest

from fewfed.runs.packing import GAIN, UNKNOWN, WARM, WINDOW, GpuMemory, HostMemory, Packing

GIB = 1 << 30


@dataclass
class Fake:
    """A memory of a given size in which every process uses what it is said to."""

    size: int | None
    uses: dict[int, int] = field(default_factory=dict)

    def free(self) -> int | None:
        return None if self.size is None else self.size - sum(self.uses.values())

    def used(self, pid: int) -> int:
        return self.uses.get(pid, 0)


def start_all(packing: Packing, first: int = 1, wish: int = 100) -> list[int]:
    """Start as many as may be; their numbers."""
    started = []
    while packing.may_start() and len(started) < wish:
        packing.started(first + len(started))
        started.append(first + len(started))
    return started


def test_on_cores_a_number_of_runs_start_at_once() -> None:
    packing = Packing(4)
    assert len(start_all(packing)) == 4
    packing.ended(2)
    assert packing.may_start()


def test_before_anything_is_known_runs_are_taken_to_need_something() -> None:
    assert len(start_all(Packing(8, [Fake(3 * UNKNOWN + UNKNOWN // 4)]))) == 3


def test_what_runs_show_to_need_counts_from_then_on() -> None:
    memory = Fake(10 * GIB)
    packing = Packing(64, [memory])
    packing.started(1)
    memory.uses[1] = 2 * GIB
    packing.round_of(1)
    others = start_all(packing, first=2)
    assert len(others) == 3  # 8 GiB are free: three of 2 GiB and a quarter of one to spare.
    assert "one more would need 2048 MiB" in packing.why


def test_small_runs_may_be_many() -> None:
    memory = Fake(4 * GIB)
    packing = Packing(64, [memory])
    packing.started(1)
    memory.uses[1] = GIB // 10
    packing.round_of(1)
    assert len(start_all(packing, first=2)) > 30


def test_one_run_always_starts() -> None:
    packing = Packing(4, [Fake(0)])
    assert packing.may_start()
    packing.started(1)
    assert not packing.may_start()


def test_memory_nobody_can_tell_of_stops_nothing() -> None:
    assert len(start_all(Packing(4, [Fake(None)]))) == 4


def simulate(throughput: dict[int, float], most: int = 8) -> Packing:
    """A machine on which n runs together make `throughput[n]` rounds a second."""
    clock = [0.0]
    packing = Packing(most, growing=True, now=lambda: clock[0])
    running: list[int] = []
    for _ in range(5000):
        while packing.may_start():
            running.append(len(running) + 1)
            packing.started(running[-1])
        for pid in running:
            clock[0] += 1 / throughput[len(running)]
            packing.round_of(pid)
        if len(running) > 1 and packing.why:
            break
    return packing


def places(packing: Packing) -> int:
    """How many may run, once the runs of the simulation have ended."""
    for pid in range(1, 100):
        packing.ended(pid)
    return len(start_all(packing))


def test_runs_are_added_while_throughput_grows() -> None:
    packing = simulate({1: 10.0, 2: 19.0, 3: 27.0, 4: 27.5, 5: 27.5})
    assert places(packing) == 3
    assert packing.why.startswith("3 at once: one more added 2 %")


def test_a_busy_device_gets_one_run() -> None:
    assert places(simulate({1: 10.0, 2: 10.0})) == 1


def test_growth_ends_at_the_number_of_cores() -> None:
    assert places(simulate({n: 10.0 * n for n in range(1, 9)}, most=4)) == 4


def test_rounds_in_which_runs_warm_up_do_not_count() -> None:
    clock = [0.0]
    packing = Packing(2, growing=True, now=lambda: clock[0])
    packing.started(1)
    for _ in range(WARM):
        clock[0] += 1000.0
        packing.round_of(1)
    for _ in range(WINDOW):
        clock[0] += 0.1
        packing.round_of(1)
    assert packing.may_start()
    packing.started(2)
    for _ in range(WARM):
        for pid in (1, 2):
            clock[0] += 500.0
            packing.round_of(pid)
    for _ in range(WINDOW + 1):
        for pid in (1, 2):
            clock[0] += 0.1 / (2 * GAIN)
            packing.round_of(pid)
    assert places(packing) == 2


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="Linux tells a process's memory")
def test_the_machine_tells_its_memory() -> None:
    memory = HostMemory()
    assert (memory.free() or 0) > 1 << 20
    assert memory.used(os.getpid()) > 1 << 20
    assert memory.used(2**30) == 0


def test_a_drivers_tool_is_read_and_may_be_missing(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert GpuMemory().free() is None
    tool = os.path.join(str(tmp_path), "nvidia-smi")
    with open(tool, "w") as file:
        file.write('#!/bin/sh\ncase "$1" in *gpu*) echo 1000; echo 24;; *) echo "17, 300"; echo "18, 5";; esac\n')
    os.chmod(tool, 0o755)
    assert GpuMemory().free() == 1024 << 20
    assert GpuMemory().used(17) == 300 << 20
