"""Comparisons from Python: the same runs as on the command line, and what is returned of them."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fewfed import Dataset, Examples, Training, compare, resume, run
from fewfed.errors import ConfigError, RunError
from fewfed.report.comparison import Comparison
from fewfed.runs import api
from fewfed.runs.naming import labels_of
from run_support import SHORT, SMALL, assert_same_end, called, small

MOODY = '''
from dataclasses import dataclass
from fewfed.methods.fedavg import FedAvg
from fewfed.settings import setting

@dataclass(frozen=True)
class Moody(FedAvg):
    """FedAvg that cannot work with some of the seeds."""

    name = "{name}"
    dislikes: int = setting(1, "the seed, and all above")

    def loss(self, work, ctx, batch):
        if ctx.plan.seed >= self.dislikes:
            raise ValueError("not this seed")
        return super().loss(work, ctx, batch)
'''


def moody(path: Path, name: str = "moody") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MOODY.format(name=name))
    return str(path)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    root: Path = tmp_path_factory.mktemp("compared")
    settings = {"network": "mlp", "clients": 6, "cohort": 3, "rounds": 3, "seed": np.int64(3)}
    return compare(
        ["fedavg", "fedprox"], settings, {"epochs": 1}, seeds=2, values={"mu": 0.25, "fedprox.mu": 0.5}, out=root / "py"
    )


def test_the_same_runs_as_on_the_command_line(
    both: Comparison, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = both.folder.parent / "cli"
    chosen = ("--seeds", "2", "--seed", "3", *SMALL, "--set", "mu=0.25", "--set", "fedprox.mu=0.5", "--out", str(there))
    assert called(capsys, monkeypatch, "compare", "fedavg", "fedprox", *chosen)[0] == 0
    names = ["fedavg-seed3", "fedavg-seed4", "fedprox-seed3", "fedprox-seed4"]
    assert sorted(folder.name for folder in both.folder.iterdir() if folder.is_dir() and folder.name[0] != ".") == names
    for name in names:
        assert_same_end(both.folder / name, there / name)
    assert [Path(result.folder).name for result in both.results] == names


def test_the_table_is_plain_and_is_the_one_that_is_written(both: Comparison) -> None:
    with open(both.folder / "table.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert [row["method"] for row in both.table] == [row["method"] for row in written] == ["fedavg", "fedprox"]
    for ours, theirs in zip(both.table, written, strict=True):
        for name in ("best", "last", "last10"):
            assert math.isclose(ours[f"{name}_mean"], float(theirs[f"{name}_mean"]), abs_tol=1e-6)
            assert math.isclose(ours[f"{name}_sd"], float(theirs[f"{name}_sd"]), abs_tol=1e-6)
        assert all(isinstance(value, str | int | float) for value in ours.values())
    assert {tuple(row) for row in both.table} == {tuple(both.table[0])}, "every row has the same columns"


def test_it_prints_as_a_table(both: Comparison) -> None:
    text, page = str(both), both._repr_html_()
    for part in ("digits, qua:2, 6 clients, 3 rounds", "fedavg", "fedprox", "last 10"):
        assert part in text
        assert part.replace("last 10", "last10_mean") in page
    assert "\x1b" not in text
    assert page.count("<tr>") == 3


def test_the_same_call_goes_on_and_another_one_is_refused(both: Comparison) -> None:
    times = {file: file.stat().st_mtime_ns for file in both.folder.rglob("*.safetensors")}
    settings = {"network": "mlp", "clients": 6, "cohort": 3, "rounds": 3, "seed": 3}
    again = compare(["fedavg"], settings, Training(epochs=1), seeds=2, out=str(both.folder))
    assert again.results == both.results[:2]
    assert {file: file.stat().st_mtime_ns for file in times} == times
    with pytest.raises(RunError, match="holds a run with other settings"):
        compare(["fedavg"], settings, Training(epochs=2), seeds=2, out=both.folder)


def blobs(seed: int = 0) -> Dataset:
    draw = np.random.default_rng(seed)
    y = np.arange(90) % 3
    x = draw.normal(size=(90, 4)) + 4 * np.eye(3, 4)[y]
    return Dataset("blobs", Examples(x[:60], y[:60]), Examples(x[60:].tolist(), y[60:].tolist()), 3)


def test_own_data_and_an_own_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    settings = small(split="iid", network="auto")
    made = compare(["fedavg", "flea"], settings, SHORT, seeds=2, data=blobs(), network=net, out=tmp_path / "both")
    assert (made.failed, len(made.results), made.results[0].data) == ({}, 4, "blobs")
    alone = small(split="iid", network="auto", seed=1)
    run("flea", alone, SHORT, data=blobs(), network=net, out=tmp_path / "alone")
    assert_same_end(made.folder / "flea-seed1", tmp_path / "alone")
    with pytest.raises(RunError, match="other data"):
        compare(["fedavg"], settings, SHORT, data=blobs(1), network=net, out=tmp_path / "both")
    assert resume(made.folder / "flea-seed1", data=blobs(), network=net) == made.results[3]


def test_a_run_that_fails_is_told_and_costs_no_other(tmp_path: Path) -> None:
    method = moody(tmp_path / "some where" / "my.py")
    made = compare(["fedavg", method], small(rounds=1), SHORT, seeds=2, out=tmp_path / "out")
    assert [(row["method"], row["seeds"]) for row in made.table] == [("fedavg", 2), ("moody", 1)]
    assert list(made.failed) == ["moody-seed1"]
    assert "not this seed" in made.failed["moody-seed1"]
    assert "failed: moody-seed1: " in str(made)
    assert "moody-seed1" in made._repr_html_()
    with pytest.raises(RunError, match=r"2 of 2 runs failed; the first, moody-seed1: .*not this seed"):
        compare([method], small(rounds=1, seed=1), SHORT, seeds=2, out=tmp_path / "none")


def test_methods_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    files = [moody(tmp_path / "a" / "my.py"), moody(tmp_path / "b" / "my.py"), moody(tmp_path / "mine.py", "fedprox")]
    labels = labels_of([*files, "fedprox", f"sem({files[0]})"])
    assert list(labels.values()) == ["moody (a/my)", "moody (b/my)", "fedprox (mine)", "fedprox", "sem(moody)"]
    made = compare([files[0], files[1]], small(rounds=1), SHORT, values={"moody.dislikes": 9}, out=tmp_path / "out")
    assert [Path(result.folder).name for result in made.results] == ["moody-a-my-seed0", "moody-b-my-seed0"]
    assert [row["method"] for row in made.table] == ["moody (a/my)", "moody (b/my)"]
    assert {result.method for result in made.results} == {"moody"}


@pytest.mark.parametrize(("one", "other"), [("flea", " flea"), ("sem(flea)", "sem( flea )"), ("my.py", "./my.py")])
def test_a_method_in_two_spellings_is_named_twice(
    one: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    moody(tmp_path / "my.py")
    with pytest.raises(ConfigError, match="named twice"):
        compare([one, other], small())


@pytest.mark.parametrize("name", ["../up", "a/b", "", "...", "x" * 300, "flea-official", "ünï"])
def test_any_name_of_a_method_makes_a_plain_folder(name: str, tmp_path: Path) -> None:
    method = moody(tmp_path / "my.py", name)
    if not name:
        with pytest.raises(ConfigError, match="expected a text that is not empty"):
            compare([method], small(rounds=1), SHORT, out=tmp_path / "out")
        return
    made = compare([method, "flea:official"], small(rounds=1), {"epochs": 1}, out=tmp_path / "out")
    folders = [Path(result.folder) for result in made.results]
    assert len(set(folders)) == 2
    assert all(folder.parent == tmp_path / "out" and folder.name[0] not in ".-" for folder in folders)


def test_a_gpu_that_is_in_use_already_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(RunError, match="uses the GPU already"):
        compare(["fedavg"], small(executor="auto"), SHORT, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
