"""Comparisons: the same splits and cohorts for all, finished runs kept, failures contained, interruptions survived."""

from __future__ import annotations

import csv
import json
import math
import os
import statistics
import time
from pathlib import Path

import pytest

from fewfed.data.readers.options import DataOptions
from fewfed.errors import RunError
from fewfed.methods.registry import choose
from fewfed.plan import Plan
from fewfed.runs.cells import Cell, Update, run_cells
from fewfed.runs.execute import execute
from fewfed.runs.experiment import Resolved
from fewfed.runs.folder import RunFolder
from fewfed.runs.packing import Packing
from fewfed.runs.prepare import prepare
from run_support import (
    PATIENCE,
    SHORT,
    SMALL,
    assert_same_end,
    called,
    forked,
    killed,
    rounds_written,
    small,
    wait_until,
)

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

MOODY = '''
from dataclasses import dataclass
from fewfed.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Moody(FedAvg):
    """FedAvg that cannot work with one of the seeds."""

    name = "moody"

    def loss(self, work, ctx, batch):
        if ctx.plan.seed == 1:
            raise ValueError("not this seed")
        return super().loss(work, ctx, batch)
'''


def cell(root: Path, method: str, seed: int = 0, rounds: int = 3) -> Cell:
    resolved = Resolved(method, {}, small(rounds=rounds, seed=seed, checkpoint_seconds=0), SHORT, DataOptions())
    return Cell(f"{method}-{seed}", resolved, root / f"{method}-{seed}")


def times(root: Path) -> dict[Path, int]:
    """When each run's files were last written."""
    return {file: file.stat().st_mtime_ns for file in root.rglob("*") if file.is_file() and file.parent != root}


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Update]]:
    root: Path = tmp_path_factory.mktemp("compared")
    cells = [cell(root, method, seed) for method in ("fedavg", "local") for seed in (0, 1)]
    seen: list[Update] = []
    endings = run_cells(cells, Packing(2), seen.append)
    assert [update.cell for update in endings] == cells
    assert {update.cell.name: 0 for update in seen}.keys() == {each.name for each in cells}
    for each in cells:
        rounds = [update.round for update in seen if update.cell is each and update.result is None]
        assert rounds == [1, 2, 3]
    return root, endings


def test_every_cell_ends_as_a_run_of_its_own_does(compared: tuple[Path, list[Update]], tmp_path: Path) -> None:
    from fewfed import run

    _, endings = compared
    for update in endings:
        resolved = update.cell.resolved
        run(resolved.spec, resolved.experiment, resolved.training, out=tmp_path / update.cell.name)
        assert_same_end(update.cell.folder, tmp_path / update.cell.name)


def test_methods_share_the_splits_of_a_seed_and_seeds_differ(compared: tuple[Path, list[Update]]) -> None:
    root, _ = compared
    splits = root.glob("*/split.json")
    digest = {file.parent.name: json.loads(file.read_text())["digest"] for file in splits}
    assert digest["fedavg-0"] == digest["local-0"]
    assert digest["fedavg-1"] == digest["local-1"]
    assert digest["fedavg-0"] != digest["fedavg-1"]


def test_methods_share_the_cohorts_of_a_seed(tmp_path: Path) -> None:
    """Every member of a round's cohort remembers something under `local`: those clients and no others."""
    run_cells([cell(tmp_path, "local", rounds=1)], Packing(1), lambda update: None)
    took_part = {int(file.name.split("-")[0]) for file in (tmp_path / "local-0" / "clients").iterdir()}
    training = choose("fedavg").training
    assert not training
    assert took_part == set(Plan(0, SHORT.batch, SHORT.batch_rule, SHORT.sampling).cohort(0, 6, 3))


def test_finished_cells_are_not_run_again(compared: tuple[Path, list[Update]]) -> None:
    root, endings = compared
    before = times(root)
    seen: list[Update] = []
    again = run_cells([update.cell for update in endings], Packing(2), seen.append)
    assert [update.result for update in again] == [update.result for update in endings]
    assert seen == again
    assert times(root) == before


def test_a_failing_cell_costs_no_other(tmp_path: Path) -> None:
    cells = [cell(tmp_path, "fedavg"), cell(tmp_path, "fedprox"), cell(tmp_path, "local")]
    (tmp_path / "fedprox-0").write_text("in the way")
    first, second, third = run_cells(cells, Packing(2), lambda update: None)
    assert first.result is not None
    assert third.result is not None
    assert second.result is None
    assert "cannot create" in second.error


def test_a_cell_whose_process_dies_costs_no_other(tmp_path: Path, monkeypatch: Patch) -> None:
    checkpoint = RunFolder.checkpoint

    def deadly(self: RunFolder, *arguments: object) -> None:
        if self.path.name == "fedavg-1":
            os._exit(7)
        checkpoint(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "checkpoint", deadly)
        cells = [cell(tmp_path, "fedavg", seed) for seed in (0, 1, 2)]
        endings = run_cells(cells, Packing(2), lambda update: None)
    assert [bool(update.error) for update in endings] == [False, True, False]
    assert "its process died" in endings[1].error
    again = run_cells(cells, Packing(2), lambda update: None)
    assert not any(update.error for update in again)


def test_the_runs_of_a_killed_comparison_end_with_it(tmp_path: Path, monkeypatch: Patch) -> None:
    """Even one that is in the middle of a long round lets go of its folder at once."""
    endless = cell(tmp_path, "fedavg")
    append = RunFolder.append

    def slow(self: RunFolder, metrics: dict[str, object]) -> None:
        append(self, metrics)
        time.sleep(2 * PATIENCE)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "append", slow)
        pid = forked(lambda: run_cells([endless], Packing(1), lambda update: None))
        wait_until(lambda: rounds_written(endless.folder) == 1)
        assert killed(pid)
    (ending,) = run_cells([endless], Packing(1), lambda update: None)
    assert ending.error == ""


def test_a_killed_comparison_continues(tmp_path: Path) -> None:
    reference, root = tmp_path / "reference", tmp_path / "killed"
    rounds = 25
    run_cells([cell(reference, "local", seed, rounds) for seed in (0, 1, 2)], Packing(2), lambda update: None)
    cells = [cell(root, "local", seed, rounds) for seed in (0, 1, 2)]

    for wanted in (1, 5, 12):
        pid = forked(lambda: run_cells(cells, Packing(2), lambda update: time.sleep(0.005)))
        wait_until(lambda wanted=wanted: rounds_written(cells[0].folder) + rounds_written(cells[1].folder) >= wanted)
        killed(pid)
    endings = run_cells(cells, Packing(2), lambda update: None)
    assert not any(update.error for update in endings)
    for each in cells:
        assert_same_end(each.folder, reference / each.name)


# The command.


def test_the_command_compares_over_seeds(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    out = tmp_path / "out"
    arguments = ["fedavg", "fedprox", "--seeds", "2", "--seed", "3", *SMALL, "--set", "fedprox.mu=0.5", "--plot"]
    arguments += ["--json", "--out", str(out)]
    code, text, err = called(capsys, monkeypatch, "compare", *arguments)
    assert (code, err) == (0, "")
    report = json.loads(text.splitlines()[-1])
    assert report["folder"] == str(out)
    assert report["failed"] == {}
    assert [(each["method"], each["seed"]) for each in report["runs"]] == [
        ("fedavg", 3),
        ("fedavg", 4),
        ("fedprox", 3),
        ("fedprox", 4),
    ]
    fields = {
        folder.name: json.loads((folder / "config.json").read_text())["method_fields"]
        for folder in out.iterdir()
        if folder.is_dir()
    }
    assert fields == {
        "fedavg-seed3": {},
        "fedavg-seed4": {},
        "fedprox-seed3": {"mu": "0.5"},
        "fedprox-seed4": {"mu": "0.5"},
    }
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")

    with open(out / "table.csv", newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["fedavg", "fedprox"]
    for method, row in rows.items():
        mine = [each for each in report["runs"] if each["method"] == method]
        assert int(row["seeds"]) == 2
        for name in ("best", "last", "last10"):
            values = [each["accuracy"][name] for each in mine]
            assert math.isclose(float(row[f"{name}_mean"]), statistics.mean(values), abs_tol=1e-6)
            assert math.isclose(float(row[f"{name}_sd"]), statistics.stdev(values), abs_tol=1e-6)
        assert math.isclose(float(row["mb_up"]), statistics.mean(each["bytes"]["up"] for each in mine) / 1e6)
        assert float(row["steps"]) == statistics.mean(each["steps"] for each in mine)

    before = times(out)
    code, again, err = called(capsys, monkeypatch, "compare", *arguments)
    assert (code, err) == (0, "")
    assert json.loads(again.splitlines()[-1]) == report
    assert times(out) == before


def test_a_field_that_only_some_methods_have_goes_to_those(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    out = tmp_path / "out"
    chosen = ("--set", "mu=0.25", "--set", "training.momentum=0.5")
    assert called(capsys, monkeypatch, "compare", "fedavg", "fedprox", *SMALL, *chosen, "--out", str(out))[0] == 0
    for name, expected in (("fedavg", {}), ("fedprox", {"mu": "0.25"})):
        config = json.loads((out / f"{name}-seed0" / "config.json").read_text())
        assert config["method_fields"] == expected
        assert config["training"]["momentum"] == 0.5


def test_a_file_names_methods_seeds_and_fields(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'methods = ["fedavg", "fedprox"]\nseeds = 2\nseed = 5\nnetwork = "mlp"\nclients = 6\ncohort = 3\nrounds = 2\n'
        "[training]\nepochs = 1\n[method.fedprox]\nmu = 0.125\n"
    )
    out = tmp_path / "out"
    code, text, err = called(capsys, monkeypatch, "compare", "--config", str(file), "--json", "--out", str(out))
    assert (code, err) == (0, "")
    runs = json.loads(text.splitlines()[-1])["runs"]
    assert [(each["method"], each["seed"], each["rounds"]) for each in runs] == [
        ("fedavg", 5, 2),
        ("fedavg", 6, 2),
        ("fedprox", 5, 2),
        ("fedprox", 6, 2),
    ]
    assert json.loads((out / "fedprox-seed6" / "config.json").read_text())["method_fields"] == {"mu": 0.125}


def test_a_failing_run_is_named_and_the_exit_code_is_2(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    file = tmp_path / "moody.py"
    file.write_text(MOODY)
    out = tmp_path / "out"
    arguments = ["fedavg", str(file), "--seeds", "3", *SMALL, "--json", "--out", str(out)]
    code, text, err = called(capsys, monkeypatch, "compare", *arguments)
    assert code == 2
    report = json.loads(text.splitlines()[-1])
    assert len(report["runs"]) == 5
    assert len(report["failed"]) == 1
    (name,) = report["failed"]
    assert name == "moody-seed1"
    failure, last = err.splitlines()
    assert failure.startswith(f"failed: {name}: ")
    assert last.startswith("error: 1 of 6 runs failed")
    assert "not this seed" in last
    assert (out / "table.csv").read_text().count("\n") == 3


def test_other_settings_do_not_go_into_the_same_folder(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    out = tmp_path / "out"
    assert called(capsys, monkeypatch, "compare", "fedavg", *SMALL, "--out", str(out))[0] == 0
    before = times(out)
    code, _, err = called(capsys, monkeypatch, "compare", "fedavg", *SMALL, "--lr", "0.5", "--out", str(out))
    assert code == 2
    assert err.startswith("error: ")
    assert "holds a run with other settings" in err
    assert times(out) == before


def test_a_comparison_can_be_moved(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    """Finished runs are found where they lie now, not where they were written."""
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "there")
    assert called(capsys, monkeypatch, "compare", "fedavg", *SMALL, "--out", "out")[0] == 0
    monkeypatch.chdir(tmp_path)
    code, text, err = called(capsys, monkeypatch, "compare", "fedavg", *SMALL, "--out", "there/out", "--plot", "--json")
    assert (code, err) == (0, "")
    assert json.loads(text.splitlines()[-1])["runs"][0]["folder"] == "there/out/fedavg-seed0"
    assert (tmp_path / "there" / "out" / "curves.png").exists()


def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_runs(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    code, _, err = called(capsys, monkeypatch, "compare", "fedavg", *SMALL, "--plot", "--out", str(tmp_path / "out"))
    assert code == 2
    assert "fewfed[plot]" in err
    assert not (tmp_path / "out").exists()


def test_a_run_in_a_cell_folder_of_another_configuration_is_refused(tmp_path: Path) -> None:
    one, other = cell(tmp_path, "fedavg"), cell(tmp_path, "fedavg", rounds=4)
    execute(prepare(one.resolved), one.folder)
    with pytest.raises(RunError, match="holds a run with other settings"):
        execute(prepare(other.resolved), one.folder)
