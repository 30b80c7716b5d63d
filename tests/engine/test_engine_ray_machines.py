"""Machines of a Ray cluster that die, drivers that are killed, and what is left of a run afterwards: nothing."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import descendants, is_gone
from ray_runs import WAITING, actors_of, events, everybody, harmed, pids, wait_until

import fewfed
from fewfed.engine.executors.ray.options import Options
from fewfed.engine.loop import RoundView
from fewfed.errors import ConfigError
from run_support import SHORT, assert_same_end, program, rounds_written, small, started


@pytest.fixture
def short_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder with a name short enough for Ray, of which all temporary files are."""
    folder = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def machines(short_folder: Path) -> Iterator[Any]:
    """A cluster whose head has no core, and three machines with one each, all of them on this one."""
    from ray.cluster_utils import Cluster

    (short_folder / "ray").mkdir()
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(3):
            started.add_node(num_cpus=1)
        yield started
    finally:
        started.shutdown()


def raylets(machines: Any) -> list[int]:
    return [node.all_processes["raylet"][0].process.pid for node in machines.worker_nodes]


def test_a_machine_that_dies_is_done_without_until_its_actor_is_on_another(tmp_path: Path, machines: Any) -> None:
    """The actor is in the middle of a turn when its machine is killed; a third one has a core to spare."""
    fewfed.run("scaffold", everybody(8), SHORT, out=tmp_path / "undisturbed")
    method = harmed(tmp_path, WAITING, client=3)
    killed: list[int] = []

    def kill() -> None:
        wait_until(lambda: len(pids(tmp_path)) == 1)
        (raylet,) = (each for each in raylets(machines) if pids(tmp_path)[0] in descendants(each))
        os.kill(raylet, signal.SIGKILL)
        killed.append(raylet)
        wait_until(lambda: is_gone(pids(tmp_path)[0]))

    class UntilBack:
        """Rounds would be over before a process is started."""

        def after_round(self, view: RoundView) -> None:
            if view.clock.round == 4:
                wait_until(lambda: all(actors_of(each) for each in raylets(machines) if each not in killed))

    killing = threading.Thread(target=kill)
    killing.start()
    on = Options(address=machines.address, actors=2)
    fewfed.run(method, everybody(8), SHORT, executor=on, out=tmp_path / "run", observers=[UntilBack()])
    killing.join()
    assert killed
    assert len(set(pids(tmp_path))) == 2
    assert "actor died" in events(tmp_path / "run")
    assert_same_end(tmp_path / "run", tmp_path / "undisturbed")


SAID = ("--network", "mlp", "--clients", "12", "--cohort", "12", "--rounds", "12", "--epochs", "1")


def test_a_run_whose_driver_is_killed_is_resumed_and_nothing_is_left(
    tmp_path: Path, short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the program, as a user has it: in a home of its own, in which there is nothing afterwards."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    fewfed.run("scaffold", small(clients=12, cohort=12.0, rounds=12), SHORT, out=tmp_path / "undisturbed")
    command = started(
        *("run", "scaffold", *SAID, "--executor", "ray", "--set", "ray.actors=2"),
        *("--set", "checkpoint_seconds=0", "--out", "run"),
        cwd=tmp_path,
    )
    wait_until(lambda: rounds_written(tmp_path / "run") >= 3 or command.poll() is not None)
    actors = actors_of(command.pid)
    command.kill()
    command.communicate()
    assert command.returncode == -signal.SIGKILL
    assert len(actors) == 2
    wait_until(lambda: all(map(is_gone, actors)))  # Ray's own agents take a minute, whoever started them.
    resumed = program("resume", "run", cwd=tmp_path)
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert "(raylet)" not in resumed.stdout
    assert_same_end(tmp_path / "run", tmp_path / "undisturbed")
    assert not (tmp_path / "run" / "job").exists()
    assert list(home.iterdir()) == []
    assert [entry.name for entry in short_folder.iterdir() if "ray" in entry.name] == []


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ray://127.0.0.1:1", "expected host:port of the cluster's head"),
        ("127.0.0.1:1", "no cluster answers there"),
        ("nowhere", "no cluster answers there"),
    ],
)
def test_an_address_where_nobody_is_is_told_in_a_sentence(address: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        fewfed.run("fedavg", small(), SHORT, executor=Options(address=address), out=tmp_path / "run")
