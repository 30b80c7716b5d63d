"""How many runs share a machine: on the cores one each; on a GPU as many as make it faster; memory permitting.

The main process must not touch the GPU, or the runs it forks could not use it, so memory is asked of the driver's tool.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

GAIN = 1.1
"""What one more run must add to the rounds a second of all together."""

WARM = 2
"""Rounds of every run that are not counted: reading, recording steps, timing."""

WINDOW = 5
"""Rounds of every run that one measurement takes."""

UNKNOWN = 1 << 30
"""Bytes a run is taken to need before any has shown what it does."""

_SPARE = 1.25


class Memory(Protocol):
    """What runs may use."""

    def free(self) -> int | None:
        """Bytes nobody uses; None where nobody can tell."""

    def used(self, pid: int) -> int:
        """Bytes that process uses, 0 if that cannot be told."""


class HostMemory:
    """The machine's own memory, as Linux tells it."""

    def free(self) -> int | None:
        return _kilobytes(Path("/proc/meminfo"), "MemAvailable:")

    def used(self, pid: int) -> int:
        return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") or 0


class GpuMemory:
    """The memory of all GPUs together, as the driver's tool tells it."""

    def free(self) -> int | None:
        lines = _asked("--query-gpu=memory.free")
        return sum(_mebibytes(line) for line in lines) if lines else None

    def used(self, pid: int) -> int:
        rows = (line.split(",") for line in _asked("--query-compute-apps=pid,used_memory"))
        return sum(_mebibytes(row[1]) for row in rows if len(row) == 2 and row[0].strip() == str(pid))


@dataclass
class _Run:
    """What is known of a run that is going on."""

    rounds: int = 0
    most: int = 0


class Packing:
    """Says whether one more run may start."""

    def __init__(
        self,
        most: int,
        memories: Collection[Memory] = (),
        *,
        growing: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most = max(1, most)
        self._memories = tuple(memories)
        self._growing = growing and self.most > 1
        self._limit = 1 if self._growing else self.most
        self._now = now
        self._runs: dict[int, _Run] = {}
        self._largest = [UNKNOWN for _ in self._memories]
        self._shown = [False for _ in self._memories]
        self._rates: dict[int, float] = {}
        self._since: tuple[float, int] | None = None
        self.why = ""
        """Why no more than these, where something else than their number said so."""

    def started(self, pid: int) -> None:
        self._runs[pid] = _Run()
        self._since = None

    def ended(self, pid: int) -> None:
        self._runs.pop(pid, None)
        self._since = None

    def round_of(self, pid: int) -> None:
        """A run finished a round."""
        if pid not in self._runs:
            return
        self._runs[pid].rounds += 1
        for position, memory in enumerate(self._memories):
            if self._runs[pid].rounds <= WARM and (used := memory.used(pid)):
                # The first that shows what it needs replaces the guess; later ones may only raise it.
                self._largest[position] = max(used, self._largest[position] if self._shown[position] else 0)
                self._shown[position] = True
        if self._growing:
            self._measure()

    def may_start(self) -> bool:
        """Whether there is a place, and memory for one more run beside what those going on have yet to take."""
        if not self._runs:
            return True
        if len(self._runs) >= self._limit:
            return False
        for memory, need in zip(self._memories, self._largest, strict=True):
            free = memory.free()
            if free is None:
                continue
            to_come = sum(max(0, need - memory.used(pid)) for pid in self._runs)
            if free - to_come < _SPARE * need:
                self.why = f"{len(self._runs)} at once: one more would need {need >> 20} MiB, {free >> 20} MiB are free"
                return False
        return True

    def _measure(self) -> None:
        if len(self._runs) < self._limit or any(run.rounds < WARM for run in self._runs.values()):
            return
        rounds = sum(run.rounds for run in self._runs.values())
        if self._since is None:
            self._since = (self._now(), rounds)
            return
        began, before = self._since
        if rounds - before < WINDOW * self._limit:
            return
        rate = (rounds - before) / max(1e-9, self._now() - began)
        self._rates[self._limit] = rate
        self._since = None
        fewer = self._rates.get(self._limit - 1, 0.0)
        if rate < GAIN * fewer:
            self._limit -= 1
            self._growing = False
            self.why = f"{self._limit} at once: one more added {100 * (rate / fewer - 1):.0f} % to the rounds a second"
        elif self._limit < self.most:
            self._limit += 1
        else:
            self._growing = False


def gpu_names() -> list[str]:
    """The GPUs of this machine, as the driver's tool names them."""
    return _asked("--query-gpu=name")


def _kilobytes(file: Path, name: str) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name)), None)


def _asked(query: str) -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in done.stdout.splitlines() if line.strip()]


def _mebibytes(text: str) -> int:
    return int(text.strip()) << 20 if text.strip().isdigit() else 0
