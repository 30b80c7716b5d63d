"""One adapter run as a command of its own: its times, its steps and the peak memory of all its processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from peers.environments import HERE, NotMeasured, Simulator, last_words
from peers.settings import Setting

SAMPLE_SECONDS = 0.25
"""Between two looks at the memory. Reading it stops a process for a moment, so not more often."""


@dataclass(frozen=True)
class Run:
    """What one command took. `rounds` is from the end of the first round to the end of the last."""

    whole: float
    rounds: float
    steps: int
    processes: int
    moved: float
    peak_mb: float
    memory: str


def run(python: Path, simulator: Simulator, setting: Setting, rounds: int, processes: int, limit: float) -> Run:
    """Run an adapter over one round more than is measured; raise `NotMeasured` when it fails or does other work."""
    with tempfile.TemporaryDirectory() as scratch:
        result, errors = Path(scratch) / "result.json", Path(scratch) / "errors.txt"
        command = [str(python), str(simulator.adapter), "--setting", setting.name, "--rounds", str(rounds + 1)]
        command += ["--processes", str(processes), "--result", str(result)]
        began = time.perf_counter()
        with errors.open("w") as sink:
            # Peers write where they stand; their standing place is thrown away.
            process = subprocess.Popen(command, env=_environment(), cwd=scratch, stdout=sink, stderr=sink)
            with _Memory(process.pid) as memory:
                try:
                    status = process.wait(limit)
                except subprocess.TimeoutExpired:
                    memory.end_all()
                    process.wait()
                    raise NotMeasured(f"not finished within {limit:g} s") from None
        whole = time.perf_counter() - began
        memory.end_all()
        if status != 0 or not result.exists():
            raise NotMeasured(f"status {status}: {last_words(errors.read_text(errors='replace'))}")
        told = json.loads(result.read_text())
    check(told["steps"], len(told["ends"]), setting, rounds)
    measured = told["ends"][-1] - told["ends"][0]
    return Run(whole, measured, told["steps"], told["processes"], told["moved"], memory.peak_mb, memory.kind)


def check(steps: int, ended: int, setting: Setting, rounds: int) -> None:
    """The work must be that of the setting."""
    expected = setting.expected_steps(rounds + 1)
    if ended != rounds + 1:
        raise NotMeasured(f"invalid: {ended} rounds instead of {rounds + 1}")
    if steps != expected:
        raise NotMeasured(f"invalid: {steps} optimiser steps instead of {expected}")


def _environment() -> dict[str, str]:
    repository = HERE.parent.parent
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (repository / "src", HERE.parent))),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        # Nothing is to be reported to anybody while the clock runs.
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "WANDB_MODE": "disabled",
        # A rich progress bar redraws itself only on a terminal.
        "TERM": "dumb",
    }


class _Memory:
    """Watches a process and all that descend from it, those included that have left their parent."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[int, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_mb = 0.0
        self.kind = "PSS"

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def end_all(self) -> None:
        """End what a run has left behind, so that it does not disturb the next one."""
        self._find()
        for pid in self._alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._find()
            self.peak_mb = max(self.peak_mb, sum(self._kilobytes(pid) for pid in self._alive()) / 1024)

    def _find(self) -> None:
        """Add new descendants. A process is known by its number and its start, as numbers are used again."""
        table = dict(_processes())
        if self._root in table:
            self._seen.setdefault(self._root, table[self._root][1])
        grown = True
        while grown:
            grown = False
            for pid, (parent, start) in table.items():
                if pid not in self._seen and parent in self._seen:
                    self._seen[pid] = start
                    grown = True
        self._seen = {pid: start for pid, start in self._seen.items() if pid in table and table[pid][1] == start}

    def _alive(self) -> list[int]:
        return list(self._seen)

    def _kilobytes(self, pid: int) -> int:
        """Proportional set size, which counts shared pages once; resident size where that cannot be read."""
        if self.kind == "PSS":
            try:
                return _field(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")
            except PermissionError:
                self.kind = "RSS"
            except OSError:
                return 0
        try:
            return _field(Path(f"/proc/{pid}/status"), "VmRSS:")
        except OSError:
            return 0


def _processes() -> Iterator[tuple[int, tuple[int, str]]]:
    """Number, parent and start time of every process."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name in brackets may contain blanks.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        yield int(entry.name), (int(fields[1]), fields[19])


def _field(path: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(name)), 0)
