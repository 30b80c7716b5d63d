"""The worked examples, each by its one command: cut down, on small made data in the published layouts."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
import typer
from made_data import write_chase, write_drive, write_har, write_lung, write_pneumonia
from PIL import Image

from fewfed.cli.app import app
from fewfed.methods.registry import choose

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ("activity", "retina", "xray", "lung")


def prepare_of(example: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"prepare_{example}", ROOT / "examples" / example / "prepare.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def executed(example: str, out: Path, given: Mapping[str, str]) -> str:
    """Run the one command of an example with one round and one seed; what it printed."""
    environment = {
        **os.environ,
        **given,
        "OUT": str(out),
        "ROUNDS": "1",
        "SEEDS": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }
    done = subprocess.run(
        [str(ROOT / "examples" / example / "run.sh")], env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def looks_finished(example: str, out: Path, methods: int) -> None:
    assert len(list(out.glob("compare/**/result.json"))) == methods
    assert "<html" in (out / "report.html").read_text()
    assert (out / "statement.md").stat().st_size > 500
    assert (out / "model" / "README.md").is_file()
    torch.jit.load(str(out / "model" / "model.pt"))
    assert re.match(r"\d+m", (out / "times").read_text())


def test_activity_runs_from_the_published_layout_to_its_report(tmp_path: Path) -> None:
    write_har(tmp_path / "data", [*range(1, 10), 30], windows=21)
    executed("activity", tmp_path / "out", {"FEWFED_DATA": str(tmp_path / "data")})
    looks_finished("activity", tmp_path / "out", methods=5)
    assert len((tmp_path / "out" / "predictions.csv").read_text().splitlines()) == 1 + 6 * 12


def test_xray_runs_from_the_published_file_to_its_report(tmp_path: Path) -> None:
    write_pneumonia(tmp_path)
    printed = executed("xray", tmp_path / "out", {"FEWFED_DATA": str(tmp_path)})
    looks_finished("xray", tmp_path / "out", methods=7)
    assert "on 20 labelled rows" in printed


def test_retina_runs_from_the_published_folders_to_its_report(tmp_path: Path) -> None:
    write_drive(tmp_path / "DRIVE")
    write_chase(tmp_path / "CHASEDB1")
    given = {"DRIVE": str(tmp_path / "DRIVE"), "CHASE": str(tmp_path / "CHASEDB1"), "FEWFED_DATA": ""}
    executed("retina", tmp_path / "out", given)
    looks_finished("retina", tmp_path / "out", methods=4)
    with np.load(tmp_path / "out" / "masks.npz") as found:
        assert found["masks"].shape == (2, 128, 128)


def test_lung_runs_from_the_packages_table_to_its_report(tmp_path: Path) -> None:
    write_lung(tmp_path / "lung.csv")
    printed = executed("lung", tmp_path / "out", {"TABLE": str(tmp_path / "lung.csv")})
    looks_finished("lung", tmp_path / "out", methods=8)
    assert "2 were lost from sight" in printed
    with (tmp_path / "out" / "predictions.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2


def test_windows_to_train_on_and_to_test_never_overlap() -> None:
    prepare = prepare_of("activity")
    y, person = np.tile(np.repeat(np.arange(6), 30), 2), np.repeat([1, 2], 180)
    rows, test = prepare.chosen(y, person, 8)
    trained, tested = rows[~test], rows[test]
    assert len(trained) == 2 * 6 * 8
    assert len(tested) == 2 * 6 * 12
    # Neighbours of the same person and activity share half their samples.
    alike = (y[trained][:, None] == y[tested]) & (person[trained][:, None] == person[tested])
    assert np.abs(trained[:, None] - tested)[alike].min() > 1
    for place in (trained, tested):
        assert np.bincount(y[place]).tolist() == [len(place) // 6] * 6


def test_a_person_with_too_few_windows_is_named() -> None:
    with pytest.raises(SystemExit, match=r"person 1 has 20 windows of walking: expected 8 to train on, 12 to test"):
        prepare_of("activity").chosen(np.repeat(np.arange(6), 20), np.ones(120, int), 8)


def test_clinics_have_twenty_images_each_and_none_twice() -> None:
    labels = (np.arange(2400) % 4 > 0).astype(int)
    clinics = prepare_of("xray").drawn(labels, 40, np.random.default_rng(1))
    everything = [row for rows in clinics for row in rows]
    assert [len(rows) for rows in clinics] == [20] * 40
    assert len(set(everything)) == 800
    ill = np.array([labels[rows].sum() for rows in clinics])
    assert ill.min() <= 2 < 18 <= ill.max()


def test_too_few_images_for_the_clinics_are_refused() -> None:
    with pytest.raises(SystemExit, match="too few for 40 clinics"):
        prepare_of("xray").drawn(np.array([0, 1] * 50), 40, np.random.default_rng(1))


def test_patients_lost_before_the_day_have_no_answer() -> None:
    answer = prepare_of("lung").answer
    cases = [("181", "1", "alive"), ("181", "2", "alive"), ("180", "2", "died"), ("180", "1", ""), ("5", "1", "")]
    for time, status, expected in cases:
        assert answer({"time": time, "status": status}, 180) == expected


@pytest.mark.parametrize("text", ["", "institution,age\n3,74\n"])
def test_a_table_of_something_else_is_one_sentence(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.csv").write_text(text)
    words = ["prepare.py", "--out", str(tmp_path / "out"), "--table", str(tmp_path / "other.csv")]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match=r"has no patients with .*time.*: expected lung\.csv"):
        prepare_of("lung").main()
    assert not (tmp_path / "out").exists()


def test_survival_is_that_of_kaplan_and_meier() -> None:
    generator = np.random.default_rng(3)
    times, died = generator.integers(1, 40, 120), generator.random(120) < 0.7
    patients = [{"time": str(time), "status": "2" if dead else "1"} for time, dead in zip(times, died, strict=True)]
    sample = scipy.stats.CensoredData(uncensored=times[died], right=times[~died])
    expected = scipy.stats.ecdf(sample).sf
    for day in (0, 1, 17, 39):
        assert prepare_of("lung").survival(patients, day) == pytest.approx(float(expected.evaluate(day)))


def test_drive_without_masks_of_its_test_part_holds_training_images_out(tmp_path: Path) -> None:
    write_drive(tmp_path, test_masks=False)
    training, testing = prepare_of("retina").drive(tmp_path)
    assert [name for name, _, _ in training] == ["21", "22", "23"]
    assert [name for name, _, _ in testing] == ["24"]


def test_eyes_stay_round_and_masks_have_two_values(tmp_path: Path) -> None:
    write_chase(tmp_path / "chase")
    prepare = prepare_of("retina")
    prepare._write(prepare.chase(tmp_path / "chase"), tmp_path / "out")
    for kind in ("images", "vessels"):
        files = sorted((tmp_path / "out" / kind).iterdir())
        assert [file.name for file in files] == [f"Image_0{child}{side}.png" for child in (1, 2) for side in "LR"]
    mask = np.asarray(Image.open(tmp_path / "out" / "vessels" / "Image_01L.png"))
    assert mask.shape == (64, 64)
    assert np.unique(mask).tolist() == [0, 255]
    assert (mask[:2] == 0).all()
    assert (mask == 255).sum() == 6 * 64


@pytest.mark.parametrize(("write", "what"), [(write_drive, "drive"), (write_chase, "chase")])
def test_a_missing_mask_is_named(write: Any, what: str, tmp_path: Path) -> None:
    write(tmp_path)
    next(iter(sorted([*tmp_path.rglob("*manual1.gif"), *tmp_path.rglob("*1stHO.png")]))).unlink()
    with pytest.raises(SystemExit, match="is missing: expected a mask of the first observer"):
        getattr(prepare_of("retina"), what)(tmp_path)


def commands_of(example: str) -> list[list[str]]:
    text = (ROOT / "examples" / example / "run.sh").read_text().replace("\\\n", " ")
    lines = re.findall(r"^(?:place=\$\()?(fewfed [^\n]+?)\)?$", text, re.M)
    filled = (line.replace("$ROUNDS", "1").replace("$SEEDS", "1") for line in lines)
    return [shlex.split(line)[1:] for line in filled]


@pytest.mark.parametrize("example", EXAMPLES)
def test_commands_of_the_examples_are_understood(example: str) -> None:
    found = commands_of(example)
    assert {"explain", "compare", "predict", "export", "report"} <= {words[0] for words in found}
    for words in found:
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(command.name, words)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_readme_shows_a_result_of_every_method_that_is_run(example: str) -> None:
    page = (ROOT / "examples" / example / "README.md").read_text()
    result = page.split("<!-- result -->")[1].split("<!-- end of result -->")[0]
    rows = re.findall(r"^\| ([^|]+) \|", result, re.M)
    for words in commands_of(example):
        if words[0] == "compare":
            methods = words[1 : next(place for place, word in enumerate(words) if word.startswith("--"))]
            assert {choose(method).method.label for method in methods} <= {row.strip() for row in rows}
    assert re.search(r"\d+ seeds?, \d+ rounds", result)
    assert f"examples/{example}/run.sh" in page
    assert f"make example-{example}" in page


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_installs_what_it_needs_and_nothing_else(example: str, tmp_path: Path) -> None:
    """In a clean clone: photographs are read by the extra `images`, the rest needs none."""
    environment = f"VENV={tmp_path / 'venv'}"
    done = subprocess.run(["make", "-n", "-C", str(ROOT), environment, f"example-{example}"], capture_output=True,
                          text=True, check=True)  # fmt: skip
    assert f"examples/{example}/run.sh" in done.stdout
    assert ("-e '.[images]'" in done.stdout) == (example == "retina")


NOWHERE = "/nowhere"
REFUSED: dict[str, tuple[str, dict[str, str], str]] = {
    "one of two folders": ("retina", {"DRIVE": NOWHERE}, "name both folders as they are published"),
    "the other of two": ("retina", {"CHASE": NOWHERE}, "name both folders as they are published"),
    "no folder": ("retina", {"DRIVE": NOWHERE, "CHASE": NOWHERE}, "has no images: expected the folder"),
    "no table": ("lung", {"TABLE": NOWHERE}, "there is no file /nowhere: expected lung.csv"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_data_that_are_not_there_are_one_sentence(case: str, tmp_path: Path) -> None:
    example, given, says = REFUSED[case]
    done = subprocess.run(
        [str(ROOT / "examples" / example / "run.sh")], capture_output=True, text=True, timeout=100,
        env={"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "OUT": str(tmp_path), **given},
    )  # fmt: skip
    assert done.returncode != 0
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("example", "says"), [("xray", "has no pneumoniamnist.npz"), ("activity", "has no folder")])
def test_a_folder_without_the_published_files_is_one_sentence(example: str, says: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "examples" / example / "prepare.py"), str(tmp_path), "--out",
                           str(tmp_path / "out")], capture_output=True, text=True, timeout=100)  # fmt: skip
    assert done.returncode == 1
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1
