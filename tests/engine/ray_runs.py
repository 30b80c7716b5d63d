"""Runs on a Ray cluster for tests: beside them the same run by `workers`, and methods whose processes come to harm."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import descendants

import fewfed
from fewfed import Experiment, Training
from fewfed.engine.executors.ray.cluster import Cluster
from fewfed.engine.executors.ray.options import Options
from fewfed.engine.executors.workers.options import Options as WorkerOptions
from run_support import assert_same_end, small

PATIENCE = 120.0
RAY = Options(actors=2)
WORKERS = WorkerOptions(processes=2, stack=1, layout="plain")


@contextmanager
def running_cluster(cores: int = 2) -> Iterator[Cluster]:
    """A cluster that all runs of this process use meanwhile."""
    cluster = Cluster("", cores)
    try:
        yield cluster
    finally:
        cluster.close()


def assert_same_by_workers(folder: Path, method: str, training: Training, own: Mapping[str, Any], **said: Any) -> None:
    """A run on the cluster ends with the bits that `workers` ends with; `own`: other arguments of `fewfed.run`."""
    experiment = small(**{"clients": 12, "cohort": 6.0, "rounds": 2, "checkpoint_seconds": 0.0, **said})
    for name, executor in (("ray", RAY), ("workers", WORKERS)):
        fewfed.run(method, experiment, training, executor=executor, out=folder / name, progress=False, **own)
    assert_same_end(folder / "ray", folder / "workers")
    assert_same_packets(folder / "ray", folder / "workers")
    assert not (folder / "ray" / "job").exists()


def assert_same_packets(folder: Path, reference: Path) -> None:
    """What was recorded of what was sent is the same, file by file."""
    ours, theirs = (
        {str(file.relative_to(each)): file for file in each.glob("packets/**/*") if file.is_file()}
        for each in (folder, reference)
    )
    assert ours.keys() == theirs.keys()
    for name, file in ours.items():
        assert file.read_bytes() == theirs[name].read_bytes(), name


def events(folder: Path) -> list[str]:
    """The kinds of what a run's rounds told."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [event["kind"] for line in lines for event in json.loads(line)["events"]]


HARM = '''
"""SCAFFOLD whose processes come to harm in the second round, after client {client} has trained."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from fewfed.method import Context, Report
from fewfed.methods.scaffold import Scaffold
from fewfed.tree import Tree

LOG = Path({log!r})


@dataclass(frozen=True)
class Harmed(Scaffold):
    name = "harmed"
    own_training = Scaffold.own_training

    def end(self, work: Tree, ctx: Context) -> Report:
        if ctx.clock.round == 1 and ctx.client == {client}:
            with LOG.open("a") as log:
                log.write(f"{{os.getpid()}}\\n")
            if len(LOG.read_text().splitlines()) <= {times}:
                {harm}
        return super().end(work, ctx)
'''

KILLED = "os.kill(os.getpid(), 9)"
WAITING = "time.sleep(600)"


def harmed(folder: Path, harm: str, client: int, times: int = 1) -> str:
    """The file of a method with which `harm` is done to the process that has client `client`, the first `times`."""
    file = folder / "harmed.py"
    file.write_text(HARM.format(log=str(folder / "log"), harm=harm, client=client, times=times))
    return str(file)


def pids(folder: Path) -> list[int]:
    """Processes that were about to come to harm."""
    log = folder / "log"
    return [int(line) for line in log.read_text().splitlines()] if log.exists() else []


def everybody(rounds: int = 3) -> Experiment:
    """Twelve clients that all take part in every round."""
    return small(clients=12, cohort=12.0, rounds=rounds, checkpoint_seconds=0.0)


def actors_of(driver: int) -> set[int]:
    """Processes of a local cluster in which actors of ours are."""
    found = set()
    for pid in descendants(driver):
        with contextlib.suppress(OSError):
            if b"ray::Actor" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(pid)
    return found


def wait_until(condition: Callable[[], bool]) -> None:
    """Longer than `run_support` does: processes of a cluster take their time on a machine that is busy."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
