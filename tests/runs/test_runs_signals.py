"""Runs that are interrupted while something in them is stuck: they end at once, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.processes import descendants, is_gone
from fewfed import run
from fewfed.data.readers.options import DataOptions
from fewfed.runs.cells import Cell, run_cells
from fewfed.runs.experiment import Resolved
from fewfed.runs.packing import Packing
from run_support import SHORT, SMALL, forked, small, started, wait_until

pytestmark = pytest.mark.timeout(120)

SOON = 2.0
"""Seconds within which an interrupted command ends."""
SLACK = 3.0
"""Seconds more on a machine with much else to do."""

STUCK = '''
import os, signal
from dataclasses import dataclass
from pathlib import Path

from fewfed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Stuck(FedAvg):
    """FedAvg whose second client never ends its turn."""

    name = "stuck"

    def loss(self, work, ctx, batch):
        if ctx.client == 1:
            Path("FOLDER", "stuck").write_text(str(os.getpid()))
            WAY
        return super().loss(work, ctx, batch)
'''
WAYS = {"stopped": "os.kill(os.getpid(), signal.SIGSTOP)", "endless": "exec('while True: pass')"}


@pytest.fixture(autouse=True, scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a run imports is imported once, not in every process that these tests fork."""
    run("fedavg", small(rounds=1), SHORT, out=tmp_path_factory.mktemp("loaded") / "run")


def method(folder: Path, way: str) -> Path:
    file = folder / "stuck.py"
    file.write_text(STUCK.replace("FOLDER", str(folder)).replace("WAY", WAYS[way]))
    return file


def cell(folder: Path, file: Path, seed: int, executor: str) -> Cell:
    experiment = small(seed=seed, cohort=6.0, executor=executor)
    return Cell(f"cell-{seed}", Resolved(str(file), {}, experiment, SHORT, DataOptions()), folder / f"cell-{seed}")


def seconds_to_end(pid: int, number: signal.Signals) -> float:
    """How long a process takes to end after a signal."""
    began = time.monotonic()
    os.kill(pid, number)
    os.waitpid(pid, 0)
    return time.monotonic() - began


def when_stuck(folder: Path) -> None:
    wait_until(lambda: (folder / "stuck").exists() and (folder / "stuck").read_text() != "")


Work = Callable[[Path, Path], object]


def one_run(folder: Path, file: Path) -> object:
    return run(str(file), small(cohort=6.0, executor="workers"), SHORT, out=folder / "run")


def cells_in_processes(folder: Path, file: Path) -> object:
    """Two runs at once, each in a process of its own."""
    cells = [cell(folder, file, seed, "sequential") for seed in (0, 1)]
    return run_cells(cells, Packing(2), lambda update: None)


def a_cell_with_workers(folder: Path, file: Path) -> object:
    """A comparison, its only run, and the workers of that."""
    return run_cells([cell(folder, file, 0, "workers")], Packing(1), lambda update: None)


@pytest.mark.parametrize(
    ("work", "way", "number"),
    [
        (one_run, "stopped", signal.SIGINT),
        (one_run, "endless", signal.SIGINT),
        (one_run, "endless", signal.SIGKILL),
        (cells_in_processes, "stopped", signal.SIGINT),
        (cells_in_processes, "endless", signal.SIGKILL),
        (a_cell_with_workers, "endless", signal.SIGINT),
        (a_cell_with_workers, "stopped", signal.SIGKILL),
    ],
)
def test_a_command_with_something_stuck_in_it_ends_at_once(
    work: Work, way: str, number: signal.Signals, tmp_path: Path
) -> None:
    """Only its first process is asked; none of the others is left."""
    file = method(tmp_path, way)
    pid = forked(lambda: work(tmp_path, file))
    when_stuck(tmp_path)
    others = descendants(pid)
    assert int((tmp_path / "stuck").read_text()) in others
    assert seconds_to_end(pid, number) < SOON + SLACK
    wait_until(lambda: all(map(is_gone, others)))


def test_an_interrupt_that_reaches_every_process_ends_a_comparison(tmp_path: Path) -> None:
    """As Ctrl-C in a terminal does; a second one changes nothing."""
    file = method(tmp_path, "endless")

    def work() -> None:
        os.setpgid(0, 0)
        cells_in_processes(tmp_path, file)

    pid = forked(work)
    when_stuck(tmp_path)
    others = descendants(pid)
    began = time.monotonic()
    for _ in range(2):
        os.killpg(pid, signal.SIGINT)
        time.sleep(0.05)
    os.waitpid(pid, 0)
    assert time.monotonic() - began < SOON + SLACK
    wait_until(lambda: all(map(is_gone, others)))


def test_an_observer_that_is_interrupted_ends_the_runs_of_a_comparison(tmp_path: Path) -> None:
    """Where the interrupt comes while an update is shown, the runs do not go on behind the user's back."""
    seen: list[set[int]] = []

    def interrupted(_: object) -> None:
        seen.append(descendants(os.getpid()))
        raise KeyboardInterrupt

    cells = [cell(tmp_path, Path("fedavg"), seed, "sequential") for seed in (0, 1)]
    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, Packing(2), interrupted)
    assert all(is_gone(pid) for pids in seen for pid in pids)


def test_the_command_ends_at_one_interrupt_although_a_worker_is_stopped(tmp_path: Path) -> None:
    file = method(tmp_path, "stopped")
    options = [*SMALL[:-6], "--cohort", "6", *SMALL[-4:], "--executor", "workers", "--out", "out"]
    process: subprocess.Popen[str] = started("run", str(file), *options, cwd=tmp_path)
    when_stuck(tmp_path)
    others = descendants(process.pid)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - began < SOON + SLACK
    assert process.returncode == 130
    assert "Traceback" not in err
    assert others
    assert all(map(is_gone, others))
