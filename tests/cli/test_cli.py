"""The command line: JSON on the last line, silence where nobody looks, and what each command shows."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fewfed import __version__
from fewfed.methods.registry import registered
from fewfed.phase import Role
from fewfed.runs.experiment import Resolved, resolve
from run_support import SMALL, called, program

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def test_run_as_a_user_does(tmp_path: Path) -> None:
    ended = program("run", "flea", *SMALL, "--seed", "2", "--out", "here", "--json", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert len(lines) <= 5
    result = json.loads(lines[-1])
    assert {name: result[name] for name in ("method", "preset", "data", "split", "clients", "rounds", "seed")} == {
        "method": "flea",
        "preset": "paper",
        "data": "digits",
        "split": "qua:2",
        "clients": 6,
        "rounds": 3,
        "seed": 2,
    }
    assert set(result["accuracy"]) == {"best", "last", "last10"}
    assert all(0 <= value <= 1 for value in result["accuracy"].values())
    assert set(result["bytes"]) == {"up", "down", "down_if_sent_every_time"}
    assert min(result["bytes"].values()) > 0
    assert result["steps"] > 0
    assert result["seconds"] > 0
    assert result["folder"] == "here"
    written = json.loads((tmp_path / "here" / "result.json").read_text())
    assert {name: written[name] for name in result} == result


def test_without_json_a_few_lines_and_nothing_else(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    out = tmp_path / ("a long way " * 8) / "[bold]brackets[/bold]"
    code, text, err = called(capsys, monkeypatch, "run", "fedavg", *SMALL, "--out", str(out))
    assert (code, err) == (0, "")
    first, second, third = text.splitlines()
    assert first.startswith("fedavg (paper) on digits, qua:2, 6 clients, seed 0: best ")
    assert second.endswith(f"folder {out}")
    assert third.startswith("data: classes on no client, so not used: ")
    result = json.loads((out / "result.json").read_text())
    assert f"best {100 * result['accuracy']['best']:.2f} %, last {100 * result['accuracy']['last']:.2f} %" in first


def test_flags_reach_the_configuration(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    out = tmp_path / "out"
    flags = {
        "data": "digits",
        "split": "dir:1.0",
        "clients": "5",
        "cohort": "2",
        "rounds": "1",
        "epochs": "2",
        "batch": "16",
        "optimizer": "sgd",
        "lr": "0.05",
        "weighting": "uniform",
        "seed": "4",
        "executor": "sequential",
        "network": "mlp",
    }
    arguments = [text for name, value in flags.items() for text in (f"--{name}", value)]
    assert called(capsys, monkeypatch, "run", "fedprox", *arguments, "--set", "mu=0.5", "--out", str(out))[0] == 0
    recorded = Resolved.from_json(json.loads((out / "config.json").read_text()))
    assert recorded == resolve("fedprox", {**flags, "mu": "0.5"})


def test_a_file_gives_the_method_and_flags_win(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    file = tmp_path / "one.toml"
    file.write_text('method = "fedprox"\nmu = 0.5\nnetwork = "mlp"\nclients = 6\ncohort = 3\nrounds = 9\nseed = 7\n')
    chosen = ("--set", "seed=8", "--set", "epochs=3", "--rounds", "2", "--epochs", "1")
    code, text, err = called(
        capsys, monkeypatch, "run", "--config", str(file), *chosen, "--json", "--out", str(tmp_path / "out")
    )
    assert (code, err) == (0, "")
    result = json.loads(text.splitlines()[-1])
    assert (result["method"], result["rounds"], result["seed"]) == ("fedprox", 2, 8)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["method_fields"] == {"mu": 0.5}
    assert config["training"]["epochs"] == 1


def test_own_data_by_path(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    draw = np.random.default_rng(0)
    y = np.arange(90) % 3
    np.savez(tmp_path / "mine.npz", x=draw.normal(size=(90, 4)) + 4 * np.eye(3, 4)[y], y=y)
    code, text, err = called(
        capsys, monkeypatch, "run", "flea", "--data", str(tmp_path / "mine.npz"), "--split", "iid", "--clients", "4",
        "--cohort", "2", "--rounds", "6", "--lr", "0.02", "--out", str(tmp_path / "out"), "--json",
    )  # fmt: skip
    assert code == 0
    assert err.startswith("mine: 90 rows, 72 to train on and 18 to test (20% held out). 3 classes (column 'y'): 0 (30)")
    result = json.loads(text.splitlines()[-1])
    assert result["accuracy"]["best"] > 0.8
    assert (result["reading"]["rows"], result["reading"]["test_rows"]) == (72, 18)
    assert json.loads((tmp_path / "out" / "split.json").read_text())["reading"] == result["reading"]


def test_progress_shows_on_a_terminal_only(tmp_path: Path) -> None:
    """Standard error is a terminal here; standard output stays a pipe and clean."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fewfed", "run", "fedavg", *SMALL, "--out", "out", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                chunk = os.read(ours, 4096)
            except OSError:  # The other end of a terminal is gone.
                break
            if not chunk:
                break
            shown += chunk
        assert process.stdout is not None
        text = process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0
    assert b"3/3" in shown
    assert b"rounds/s" in shown
    assert "\x1b" not in text
    assert json.loads(text.splitlines()[-1])["rounds"] == 3


def test_methods_as_json(capsys: Capture, monkeypatch: Patch) -> None:
    code, text, err = called(capsys, monkeypatch, "methods", "--json")
    assert (code, err) == (0, "")
    entries = json.loads(text)
    assert [entry["name"] for entry in entries] == list(registered())
    for entry in entries:
        assert {"name", "family", "paper", "parameters", "phases"} <= entry.keys()
        assert entry["family"]
        assert entry["paper"]
        for parameter in entry["parameters"]:
            assert {"name", "type", "default", "range", "help"} <= parameter.keys()
        for phase in entry["phases"]:
            for upload in phase["uploads"].values():
                assert upload["combine"] in {"mean", "sum", "concat", "keep"}
                assert upload["role"] in set(Role)
                assert upload["rows_per_row"] >= 0
            assert isinstance(phase["state"], bool)
    flea = next(entry for entry in entries if entry["name"] == "flea")
    assert {phase["name"]: phase["uploads"] for phase in flea["phases"]} == {
        "train": {"model": {"combine": "mean", "role": "model", "rows_per_row": 0}},
        "share": {
            name: {"combine": "concat", "role": name, "rows_per_row": registered()["flea"]().share}
            for name in ("features", "labels")
        },
    }
    local = next(entry for entry in entries if entry["name"] == "local")
    assert [(phase["uploads"], phase["state"]) for phase in local["phases"]] == [({}, True)]


def test_methods_as_a_table_and_one_in_full(capsys: Capture, monkeypatch: Patch) -> None:
    code, text, err = called(capsys, monkeypatch, "methods")
    assert (code, err) == (0, "")
    for name in registered():
        assert name in text
    code, text, err = called(capsys, monkeypatch, "methods", "fedprox")
    assert (code, err) == (0, "")
    assert "mu" in text
    assert registered()["fedprox"].paper in text
    code, text, _ = called(capsys, monkeypatch, "methods", "fedprox", "--json")
    assert json.loads(text)["name"] == "fedprox"


def test_split_shows_and_draws(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    picture = tmp_path / "split.png"
    chosen = ("--split", "qua:3", "--clients", "7", "--seed", "1", "--plot", str(picture), "--json")
    code, text, err = called(capsys, monkeypatch, "split", *chosen)
    assert (code, err) == (0, "")
    manifest = json.loads(text.splitlines()[-1])
    assert (manifest["rule"], manifest["clients"], manifest["seed"]) == ("qua:3", 7, 1)
    assert manifest["mean_classes"] == 3
    assert picture.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_data_lists_what_is_here(capsys: Capture, monkeypatch: Patch) -> None:
    code, text, err = called(capsys, monkeypatch, "data", "--json")
    assert (code, err) == (0, "")
    entries = {entry["name"]: entry for entry in json.loads(text)}
    assert entries["digits"]["present"]
    assert called(capsys, monkeypatch, "data")[0] == 0


def test_the_version(capsys: Capture, monkeypatch: Patch) -> None:
    assert called(capsys, monkeypatch, "--version") == (0, f"{__version__}\n", "")


def test_help_is_no_error(capsys: Capture, monkeypatch: Patch) -> None:
    for command in ((), ("run",), ("compare",), ("resume",), ("methods",), ("split",), ("data",)):
        code, text, err = called(capsys, monkeypatch, *command, "--help")
        assert (code, err) == (0, "")
        assert "Usage" in text


def test_a_reader_that_leaves_early_is_no_crash(tmp_path: Path) -> None:
    command = f"'{sys.executable}' -m fewfed methods | head -n 1"
    ended = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ended.stdout.count("\n") == 1
    assert "Traceback" not in ended.stderr
    assert "BrokenPipe" not in ended.stderr
