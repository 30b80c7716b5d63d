"""Helpers for tests of whole runs: a small experiment, what must not differ between two runs, and sudden ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fewfed import Experiment, Training, processes
from fewfed.engine import storage
from fewfed.engine.loop import RoundView
from fewfed.runs.folder import BEFORE, CHECKPOINT, METRICS, MODEL, RunFolder
from fewfed.tree import Tree
from support import same

PATIENCE = 30.0
TIMES = ("seconds", "train_seconds", "events", "chain")
"""What two runs of the same configuration may differ in."""

SMALL = ("--network", "mlp", "--clients", "6", "--cohort", "3", "--rounds", "3", "--epochs", "1")


def small(**changes: Any) -> Experiment:
    """Six clients of two digits each, three a round."""
    chosen = {"network": "mlp", "clients": 6, "cohort": 3.0, "rounds": 3, "executor": "sequential"}
    return Experiment(**{**chosen, **changes})


SHORT = Training(epochs=1)


def records(folder: Path) -> list[dict[str, Any]]:
    """A run's metrics without what depends on the clock."""
    return [
        {name: value for name, value in json.loads(line).items() if name not in TIMES}
        for line in (folder / METRICS).read_text().splitlines()
    ]


def states(folder: Path) -> dict[str, Tree]:
    """What every client remembers at the last checkpoint."""
    files = state_files(folder, CHECKPOINT)
    return {client: storage.load(folder / "clients" / name)[0] for client, name in files.items()}


def state_files(folder: Path, checkpoint: str) -> dict[str, str]:
    """The file of every client's state that a checkpoint names."""
    if not (folder / checkpoint).exists():
        return {}
    return {client: name for client, (name, _) in storage.load(folder / checkpoint)[1]["states"].items()}


def assert_same_end(folder: Path, reference: Path) -> None:
    """Metrics, final model, server and client states are equal bit for bit, and nothing is left lying about."""
    assert records(folder) == records(reference)
    for name in (MODEL, CHECKPOINT):
        assert same(storage.load(folder / name)[0], storage.load(reference / name)[0]), name
    assert same(states(folder), states(reference))
    kept = {name for checkpoint in (CHECKPOINT, BEFORE) for name in state_files(folder, checkpoint).values()}
    clients = folder / "clients"
    assert {file.name for file in clients.iterdir()} == kept if clients.exists() else not kept
    assert not list(folder.rglob("*.part"))
    assert not list(folder.rglob("*.new"))
    ours, theirs = RunFolder(folder).result(), RunFolder(reference).result()
    assert ours is not None
    assert theirs is not None
    assert ours["accuracy"] == theirs["accuracy"]
    assert ours["bytes"] == theirs["bytes"]


def forked(work: Callable[[], object]) -> int:
    """Do some work in a process of its own; the process's number."""

    def alone() -> None:
        torch.set_num_threads(1)  # OpenMP's other threads did not come along, and waiting for them never ends.
        work()

    return processes.forked(alone)


def killed(pid: int) -> bool:
    """Kill a process; whether it was still at work."""
    os.kill(pid, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


@dataclass(frozen=True)
class Halt:
    """An observer that holds a run after some rounds, until it is killed."""

    rounds: int

    def after_round(self, view: RoundView) -> None:
        if view.clock.round + 1 == self.rounds:
            time.sleep(2 * PATIENCE)


def killed_after(rounds: int, folder: Path, work: Callable[[Halt], object]) -> None:
    """Kill a run, started by `work` with this observer, as soon as it has recorded that many rounds."""
    pid = forked(lambda: work(Halt(rounds + 1)))  # An observer sees a round before it is recorded.
    wait_until(lambda: rounds_written(folder) == rounds and (folder / CHECKPOINT).exists())
    assert killed(pid)


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.001)


def rounds_written(folder: Path) -> int:
    path = folder / METRICS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def started(*arguments: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """The program as a user starts it, with its output in pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "fewfed", *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where the tests themselves run in the background, Ctrl-C is ignored, which programs would inherit.
        **{"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler), **options},
    )


def program(*arguments: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """The program as a user runs it, to its end."""
    process = started(*arguments, cwd=cwd, **options)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


Outcome = tuple[int, str, str]


def called(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Outcome:
    """The program's entry point in this process: exit code, standard output, standard error."""
    from fewfed.cli import main

    monkeypatch.setattr(sys, "argv", ["fewfed", *arguments])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ending:
        main()
    captured = capsys.readouterr()
    return int(ending.value.code or 0), captured.out, captured.err
