"""Run folders for tests of the live page: written by the package's own writer, without training anything."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fewfed.report.live.watched_run import WatchedRun
from fewfed.report.live.watcher import Watcher
from fewfed.runs.cells import Cell
from fewfed.runs.cells_file import write_cells
from fewfed.runs.experiment import Resolved, resolve
from fewfed.runs.folder import LOCK, RunFolder
from fewfed.runs.results import Result, summarise

FOR_EVER = float("inf")
ROUNDS = 10


def resolved(method: str = "fedavg", seed: int = 0, rounds: int = ROUNDS) -> Resolved:
    return resolve(method, {"seed": seed, "rounds": rounds, "data": "digits", "clients": 6})


def line(number: int, seed: int = 0, seconds: float = 2.0) -> dict[str, Any]:
    """A round's metrics, as large as a real one's."""
    accuracy = 1 - 1 / (1.5 + 0.1 * number + 0.01 * seed)
    traffic = {"up": 1000, "down": 2000, "down_if_sent_every_time": 2000}
    phase = {"bytes_up": 1000, "bytes_down": 2000, "bytes_down_if_sent_every_time": 2000, "clients": 3, "steps": 12}
    return {
        "round": number, "lr": 0.01, "bytes": traffic, "steps": 12, "phases": {"train": phase}, "failed": [],
        "events": [], "train_seconds": seconds, "accuracy": accuracy, "loss": 2 * (1 - accuracy),
        "per_class": [accuracy] * 10, "balanced_accuracy": accuracy, "macro_f1": accuracy, "calibration_error": 0.1,
        "seconds": seconds,
    }  # fmt: skip


@dataclasses.dataclass
class Writer:
    """Writes a run as a run does, round by round."""

    folder: Path
    method: str = "fedavg"
    seed: int = 0
    rounds: int = ROUNDS
    seconds: float = 2.0
    done: int = 0

    def __post_init__(self) -> None:
        config = {**resolved(self.method, self.seed, self.rounds).as_json(), "label": self.method, "inputs": {}}
        self.run = RunFolder.create(self.folder, config, {"clients": 6, "rule": "qua:2"}, {})
        self.run.restore(lambda states: None, self.rounds)

    def go_on(self, rounds: int = 1) -> Writer:
        for _ in range(rounds):
            self.done += 1
            self.run.append(line(self.done, self.seed, self.seconds))
        return self

    def finish(self) -> Writer:
        self.go_on(self.rounds - self.done)
        summed = summarise(self.run.metrics())
        result = Result(
            method=self.method, preset="paper", data="digits", split="qua:2", clients=6, rounds=self.rounds,
            seed=self.seed, folder=str(self.folder), **summed,
        )  # fmt: skip
        scores = {"metrics": {}, "per_class": [], "per_site": []}
        self.run.finish({"model": {"weight": torch.zeros(1)}}, scores, result.as_json())
        return self


@contextmanager
def at_work(*folders: Path) -> Iterator[None]:
    """Another process holds these folders, as one does that runs there."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            for folder in folders:
                descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.lockf(descriptor, fcntl.LOCK_EX)
            os.write(writing, b"1")
            time.sleep(600)
        finally:
            os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"1"
    os.close(reading)
    try:
        yield
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def comparison(root: Path, cells: list[tuple[str, int]], rounds: int = ROUNDS) -> list[Path]:
    """The list of cells that a comparison writes; the folders they will have."""
    made = [
        Cell(f"{method}-seed{seed}", resolved(method, seed, rounds), root / f"{method}-seed{seed}")
        for method, seed in cells
    ]
    write_cells(made)
    return [cell.folder for cell in made]


@dataclasses.dataclass
class Hand:
    """A clock that is set by hand."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def watched(folder: Path, **options: Any) -> WatchedRun:
    found = WatchedRun(folder, **options)
    found.look(FOR_EVER)
    return found


def watcher(*folders: Path, compose: Callable[[Any], str] | None = None, **options: Any) -> Watcher:
    return Watcher(folders, compose or (lambda runs: "{}"), **options)
