"""Processes of a Ray cluster that die or hang: the run ends as if nothing had been."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from ray_runs import (
    KILLED,
    RAY,
    WAITING,
    WORKERS,
    actors_of,
    events,
    everybody,
    harmed,
    pids,
    running_cluster,
    wait_until,
)

import fewfed
from fewfed.engine.executors.ray.cluster import Cluster
from fewfed.engine.executors.ray.options import Options
from fewfed.errors import RunError
from fewfed.runs.folder import RunFolder
from run_support import SHORT, assert_same_end, records, rounds_written


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as begun:
        yield begun


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """The folder of a run of SCAFFOLD of that many rounds to which nothing happens."""

    @cache
    def folder_of(rounds: int) -> Path:
        out: Path = tmp_path_factory.mktemp("undisturbed") / "run"
        fewfed.run("scaffold", everybody(rounds), SHORT, out=out)
        return out

    return folder_of


@pytest.mark.usefixtures("cluster")
def test_an_actor_killed_in_a_turn_changes_nothing(tmp_path: Path, undisturbed: Callable[[int], Path]) -> None:
    """The last client of a shard: others of it have taken their turn by then, and remember something new."""
    method = harmed(tmp_path, KILLED, client=11)
    fewfed.run(method, everybody(), SHORT, executor=RAY, out=tmp_path / "run")
    assert len(set(pids(tmp_path))) == 2
    assert events(tmp_path / "run") == ["actor died"]
    assert_same_end(tmp_path / "run", undisturbed(3))


@pytest.mark.usefixtures("cluster")
def test_actors_killed_at_any_moment_change_nothing(tmp_path: Path, undisturbed: Callable[[int], Path]) -> None:
    ended = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        for number in range(2):
            after = 2 + 4 * number
            wait_until(lambda after=after: ended.is_set() or rounds_written(tmp_path / "run") >= after)  # type: ignore[misc]
            time.sleep(0.03 * number)
            for pid in sorted(actors_of(os.getpid()))[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        fewfed.run("scaffold", everybody(16), SHORT, executor=RAY, out=tmp_path / "run")
    finally:
        ended.set()
        killing.join()
    assert killed
    assert events(tmp_path / "run")
    assert_same_end(tmp_path / "run", undisturbed(16))


@pytest.mark.usefixtures("cluster")
def test_an_actor_that_does_not_come_back_is_done_without(tmp_path: Path, undisturbed: Callable[[int], Path]) -> None:
    method = harmed(tmp_path, KILLED, client=2)
    fewfed.run(method, everybody(), SHORT, executor=Options(actors=2, restarts=0), out=tmp_path / "run")
    assert events(tmp_path / "run") == ["actor died", "actor lost"]
    assert_same_end(tmp_path / "run", undisturbed(3))


@pytest.mark.usefixtures("cluster")
def test_a_run_whose_last_actor_is_lost_keeps_its_rounds_and_goes_on_elsewhere(
    tmp_path: Path, undisturbed: Callable[[int], Path]
) -> None:
    method = harmed(tmp_path, KILLED, client=2)
    with pytest.raises(RunError, match="no actor of the Ray cluster is left: it died for good"):
        fewfed.run(method, everybody(), SHORT, executor=Options(actors=1, restarts=0), out=tmp_path / "run")
    assert rounds_written(tmp_path / "run") == 1
    fewfed.resume(tmp_path / "run", executor="sequential")
    assert_same_end(tmp_path / "run", undisturbed(3))


@pytest.mark.usefixtures("cluster")
def test_an_actor_that_hangs_is_started_again(tmp_path: Path, undisturbed: Callable[[int], Path]) -> None:
    method = harmed(tmp_path, WAITING, client=4)
    fewfed.run(method, everybody(), SHORT, executor=Options(actors=2, deadline=3.0), out=tmp_path / "run")
    assert events(tmp_path / "run") == ["actor stuck"]
    assert_same_end(tmp_path / "run", undisturbed(3))


@pytest.mark.usefixtures("cluster")
def test_a_client_that_ends_every_process_is_left_out_alone(tmp_path: Path) -> None:
    """As by `workers`: the others of its shard take part, and what it remembers stays as it was."""
    method = harmed(tmp_path, KILLED, client=5, times=10**6)
    for name, executor in (("ray", RAY), ("workers", WORKERS)):
        fewfed.run(method, everybody(2), SHORT, executor=executor, out=tmp_path / name)
        (failed,) = RunFolder(tmp_path / name).metrics()[1]["failed"]
        assert (failed["client"], failed["cause"]) == (5, "worker")
    ours, theirs = ([{**record, "failed": []} for record in records(tmp_path / name)] for name in ("ray", "workers"))
    assert ours == theirs
    assert set(events(tmp_path / "ray")) == {"actor died"}
    assert len(events(tmp_path / "ray")) >= 5
    (failed,) = RunFolder(tmp_path / "ray").metrics()[1]["failed"]
    assert failed["reason"].startswith("its actor died 3 times")
