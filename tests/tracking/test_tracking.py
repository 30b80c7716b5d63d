"""Trackers: the real libraries read back every round once, also after a kill; none of them can hurt a run."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tracked

from fewfed import compare, resume, run
from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import ConfigError
from fewfed.runs.folder import RunFolder
from fewfed.tracking import observer, registry
from fewfed.tracking.observer import NOTES, noted
from fewfed.tracking.registry import TRACKERS, checked
from run_support import (
    SHORT,
    SMALL,
    Halt,
    assert_same_end,
    called,
    forked,
    killed,
    killed_after,
    records,
    rounds_written,
    small,
    wait_until,
)

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
ALL = tuple(TRACKERS)
ROUNDS = [1, 2, 3]

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def nothing_is_configured(monkeypatch: Patch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "WANDB_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def accuracies(folder: Path) -> list[tuple[int, float]]:
    return [(record["round"], record["accuracy"]) for record in records(folder)]


def assert_all_rounds_once(folder: Path, trackers: tuple[str, ...] = ALL) -> None:
    wanted = accuracies(folder)
    if "tensorboard" in trackers:
        found = tracked.tensorboard(folder)
        assert found["accuracy"] == [(step, pytest.approx(value)) for step, value in wanted]
        assert [step for step, _ in found["bytes_up"]] == [step for step, _ in wanted]
        assert len(found["result/accuracy.best"]) == 1
    if "mlflow" in trackers:
        client, (only,) = tracked.mlflow(folder)
        assert only.info.run_id == noted(OwnFolder(folder))["mlflow"]["run"]
        assert only.info.status == "FINISHED"
        found = tracked.mlflow_rounds(client, only.info.run_id)
        assert found["accuracy"] == wanted
        assert found["result/accuracy.best"] == [(0, max(value for _, value in wanted))]
        assert only.data.params["training.lr"] == "0.001"
    if "wandb" in trackers:
        history = tracked.wandb_history(folder)
        assert [(int(each["_step"]), float(each["accuracy"])) for each in history] == wanted
        ids = {record.run.run_id for record in tracked.wandb(folder) if record.WhichOneof("record_type") == "run"}
        assert ids == {noted(OwnFolder(folder))["wandb"]["run"]}
        summaries = [item.key or ".".join(item.nested_key) for record in tracked.wandb(folder)
                     if record.WhichOneof("record_type") == "summary" for item in record.summary.update]  # fmt: skip
        assert "result/accuracy.best" in summaries


def test_every_round_is_in_every_tracker_and_the_run_has_the_same_bits(tmp_path: Path, monkeypatch: Patch) -> None:
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> Any:
        assert self.family == socket.AF_UNIX or address[0] in ("127.0.0.1", "::1", "localhost"), address
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local_only)  # Weights & Biases talks to a process of its own.
    plain = run("fedavg", small(), SHORT, out=tmp_path / "plain" / "run", progress=False)
    watched = run("fedavg", small(), SHORT, out=tmp_path / "watched" / "run", track=ALL, progress=False)
    assert_same_end(Path(watched.folder), Path(plain.folder))
    assert_all_rounds_once(Path(watched.folder))
    assert not (Path(plain.folder) / NOTES).exists()


@pytest.mark.parametrize("name", ALL)
def test_a_run_that_is_killed_goes_on_in_the_same_tracker_run_with_no_round_twice(name: str, tmp_path: Path) -> None:
    reference, folder = tmp_path / "reference", tmp_path / "place" / "run"
    experiment = small(rounds=6, checkpoint_seconds=0.0)
    run("fedavg", experiment, SHORT, out=reference, progress=False)

    def work(halt: Any) -> None:
        run("fedavg", experiment, SHORT, out=folder, observers=[halt], track=name, progress=False)

    killed_after(3, folder, work)
    before = noted(OwnFolder(folder))[name]["run"]
    resume(folder, progress=False)  # The folder knows its trackers.
    assert noted(OwnFolder(folder))[name]["run"] == before
    assert_same_end(folder, reference)
    assert_all_rounds_once(folder, (name,))


@pytest.mark.parametrize("name", ALL)
def test_rounds_after_the_last_checkpoint_are_made_again_and_not_told_twice(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "place" / "run"

    def work(halt: Any) -> None:
        experiment = small(rounds=5, checkpoint_seconds=1000.0)  # Killed before any checkpoint.
        run("fedavg", experiment, SHORT, out=folder, observers=[halt], track=name, progress=False)

    pid = forked(lambda: work(Halt(4)))
    wait_until(lambda: rounds_written(folder) == 3 and noted(OwnFolder(folder)).get(name, {}).get("sent") == 3)
    assert killed(pid)
    resume(folder, progress=False)
    assert len(records(folder)) == 5
    assert_all_rounds_once(folder, (name,))


def test_a_tracker_that_comes_later_is_told_of_the_rounds_before(tmp_path: Path) -> None:
    folder = tmp_path / "place" / "run"

    def work(halt: Any) -> None:
        run("fedavg", small(rounds=4, checkpoint_seconds=0.0), SHORT, out=folder, observers=[halt], progress=False)

    killed_after(2, folder, work)
    resume(folder, track=ALL, progress=False)
    assert_all_rounds_once(folder)


def test_every_run_of_a_comparison_is_one_of_the_trackers_and_all_are_of_one_group(tmp_path: Path) -> None:
    done = compare(
        ["fedavg", "fedprox"], small(), SHORT, seeds=2, jobs=2, out=tmp_path / "table", track=ALL, progress=False
    )
    assert not done.failed
    client, found = tracked.mlflow(tmp_path / "table" / "any")
    names = {"fedavg-seed0", "fedavg-seed1", "fedprox-seed0", "fedprox-seed1"}
    assert {each.info.run_name for each in found} == names
    assert {each.data.tags["fewfed.group"] for each in found} == {"table"}
    assert [each.name for each in client.search_experiments() if each.name != "Default"] == ["table"]
    for name in names:
        folder = tmp_path / "table" / name
        assert [step for step, _ in tracked.tensorboard(folder)["accuracy"]] == ROUNDS
        assert [int(each["_step"]) for each in tracked.wandb_history(folder)] == ROUNDS
        groups = {each.run.run_group for each in tracked.wandb(folder) if each.WhichOneof("record_type") == "run"}
        assert groups == {"table"}


# Trackers that fail.


class Bad:
    """Fails at one of its functions."""

    def __init__(self, where: str) -> None:
        self.where, self.told = where, 0

    def begin(self, about: Any) -> tuple[str, int]:
        return self._done("begin") or ("bad", 0)

    def round(self, number: int, values: Mapping[str, float]) -> None:
        self.told += 1
        if number == 2:
            self._done("round")

    def end(self, summary: Any) -> None:
        self._done("end")

    def _done(self, what: str) -> Any:
        if what == self.where:
            raise OSError(28, "No space left on device\nand more")


@pytest.mark.parametrize("where", ["begin", "round", "end"])
def test_a_tracker_that_fails_is_told_once_and_costs_nothing(
    where: str, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    bad = Bad(where)
    monkeypatch.setattr(observer, "tracker", lambda name: bad if name == "wandb" else registry.tracker(name))
    plain = run("fedavg", small(), SHORT, out=tmp_path / "plain", progress=False)
    capsys.readouterr()
    folder = tmp_path / "place" / "run"
    watched = run("fedavg", small(), SHORT, out=folder, track=("wandb", "tensorboard"), progress=False)
    assert_same_end(Path(watched.folder), Path(plain.folder))
    (line,) = [each for each in capsys.readouterr().err.splitlines() if each]
    assert line.startswith("warning: Weights & Biases is left out from now on, and the run goes on: OSError")
    assert bad.told == {"begin": 0, "round": 2, "end": 3}[where]
    assert_all_rounds_once(folder, ("tensorboard",))


def test_a_server_that_is_away_costs_one_warning(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        result = run("fedavg", small(), SHORT, out=tmp_path / "run", track="mlflow", progress=False)
    assert result.rounds == 3
    assert capsys.readouterr().err.count("warning: MLflow is left out") == 1
    assert not (tmp_path / "mlflow.db").exists()


def test_where_mlflow_keeps_runs_is_the_users_choice(tmp_path: Path, monkeypatch: Patch) -> None:
    uri = f"sqlite:///{tmp_path / 'mine.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    run("fedavg", small(), SHORT, out=tmp_path / "run", track="mlflow", progress=False)
    client, (only,) = tracked.mlflow(tmp_path, uri)
    assert client.get_experiment(only.info.experiment_id).name == "mine"
    assert not (tmp_path / "mlflow.db").exists()


def test_a_folder_of_any_name_has_the_database_beside_its_runs(tmp_path: Path) -> None:
    place = tmp_path / "whät? 100%41 #1"
    run("fedavg", small(), SHORT, out=place / "run", track="mlflow", progress=False)
    assert [path.name for path in tmp_path.glob("wh*")] == [place.name]
    shutil.copy(place / "mlflow.db", tmp_path)
    client, (only,) = tracked.mlflow(tmp_path / "any")
    assert tracked.mlflow_rounds(client, only.info.run_id)["accuracy"] == accuracies(place / "run")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"wandb": 3}', '{"wandb": {"run": "../../x", "sent": 1}}', '{"odd": {}}']
)
def test_notes_that_are_damaged_or_forged_are_not_believed(text: str, tmp_path: Path) -> None:
    (tmp_path / NOTES).write_text(text)
    assert noted(OwnFolder(tmp_path)) == {}


# Names.


def test_trackers_are_checked_before_anything_is_run(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = called(capsys, monkeypatch, "run", "fedavg", *SMALL, "--track", "tensorbord")
    assert (code, out) == (2, "")
    assert err == "error: unknown tracker 'tensorbord': did you mean 'tensorboard'?\n"
    assert list(tmp_path.iterdir()) == []
    for odd in (3, [3], {"wandb": 1}):
        with pytest.raises(ConfigError, match="expected names of trackers"):
            checked(odd)
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'fewfed\[track\]'"):
        checked("mlflow")


def test_the_command_line_tracks_and_repeats_a_name_once(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ("--track", "tensorboard", "--track", "tensorboard")
    assert called(capsys, monkeypatch, "run", "fedavg", *SMALL, *flags, "--out", "here")[0] == 0
    assert_all_rounds_once(tmp_path / "here", ("tensorboard",))
    assert json.loads((tmp_path / "here" / NOTES).read_text())["tensorboard"]["sent"] == 3
    assert RunFolder(tmp_path / "here").result() is not None
    assert called(capsys, monkeypatch, "verify", "here")[0] == 0
