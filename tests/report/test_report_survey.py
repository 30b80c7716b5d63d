"""Any run folders as one table: grouped over seeds, told apart by settings, and never a traceback."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewfed import Dataset, Examples, compare, run, show
from fewfed.errors import RunError
from fewfed.report import survey as survey_module
from fewfed.report.overview import Overview, overview
from fewfed.report.page.contents import contents
from fewfed.report.survey import Found, look_at, survey
from fewfed.runs.folder import CHECKPOINT, CONFIG, METRICS, RESULT
from fewfed.version import __version__
from report_support import write_run
from run_support import SHORT, SMALL, called, killed_after, small

OLD_EXPERIMENT = {
    "data": "digits", "split": "qua:2", "clients": 6, "cohort": 3.0, "rounds": 2, "network": "mlp", "seed": 0,
    "volume": 1.0, "min_size": -1, "legacy_seed": -1, "noise": 0.0, "noise_kind": "graded", "leave_out": "",
    "executor": "auto", "processes": 0, "cpu_stack": 0, "precision": "float32", "streams": 8, "exact": False,
    "evaluate_every": 1, "evaluate_clients": 20, "checkpoint_seconds": 15.0,
}  # fmt: skip
"""As fewfed 0.1.0 wrote it: some fields are gone since, and others have come."""


def of_version_01(folder: Path, *, seed: int = 0, finished: bool = True) -> Path:
    """A run folder as fewfed 0.1.0 left it: without digests, and with what is now an option of an executor."""
    folder.mkdir(parents=True)
    config = {
        "fewfed": "0.1.0",
        "method": "fedavg",
        "method_fields": {},
        "experiment": {**OLD_EXPERIMENT, "seed": seed},
        "training": {"optimizer": "adam", "epochs": 1},
        "data_options": {"augment": "none"},
        "inputs": {"shape": [1, 8, 8], "labels": "6b7a", "weights": "7c88"},
    }
    (folder / CONFIG).write_text(json.dumps(config, indent=1))
    lines = [{"round": 1, "bytes": {"up": 10, "down": 20}, "accuracy": 0.25, "seconds": 0.1, "failed": []},
             {"round": 2, "bytes": {"up": 10, "down": 20}, "accuracy": 0.5, "seconds": 0.1, "failed": []}]  # fmt: skip
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines[: 2 if finished else 1]))
    if finished:
        result = {"method": "fedavg", "preset": "paper", "data": "digits", "split": "qua:2", "clients": 6, "rounds": 2,
                  "seed": seed, "accuracy": {"best": 0.5, "last": 0.5, "last10": 0.375}, "steps": 4, "seconds": 0.2,
                  "bytes": {"up": 20, "down": 40}, "folder": "elsewhere", "failed": 0, "note": ""}  # fmt: skip
        (folder / RESULT).write_text(json.dumps(result, indent=1))
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two comparisons of other settings, a run of its own, one that was killed, and one of an old version."""
    place: Path = tmp_path_factory.mktemp("runs")
    compare(["fedavg", "fedprox"], small(rounds=2), SHORT, seeds=3, out=place / "first")
    compare(["fedprox"], small(rounds=2), SHORT, values={"mu": 0.5}, out=place / "second")
    run("fedprox", small(rounds=2, seed=7), SHORT, values={"mu": 0.01}, out=place / "alone")
    begun = small(rounds=9, checkpoint_seconds=0)
    work = lambda halt: run("local", begun, SHORT, out=place / "deep" / "er" / "killed", observers=[halt])  # noqa: E731
    killed_after(2, place / "deep" / "er" / "killed", work)
    of_version_01(place / "old")
    return place


@pytest.fixture
def found(root: Path) -> Overview:
    return show(root)


def row(found: Overview, **wanted: Any) -> dict[str, Any]:
    (one,) = (row for row in found.table if all(row[name] == value for name, value in wanted.items()))
    return one


def test_runs_that_differ_in_their_seeds_alone_are_one_row(found: Overview, root: Path) -> None:
    best = [
        json.loads((root / "first" / f"fedavg-seed{seed}" / RESULT).read_text())["accuracy"]["best"]
        for seed in range(3)
    ]
    one = row(found, method="fedavg", fewfed=__version__)
    assert (one["seeds"], one["state"], one["clients"], one["rounds"], one["done"]) == (3, "finished", 6, 2, 2)
    assert one["best_mean"] == pytest.approx(statistics.mean(best))
    assert one["best_sd"] == pytest.approx(statistics.stdev(best))


def test_a_default_that_was_stated_is_the_same_setting(found: Overview) -> None:
    """`mu` is 0.01 by default: the run of its own is a fourth seed, in whatever folder it lies."""
    rows = {row["mu"]: row for row in found.table if row["method"] == "fedprox"}
    assert {mu: row["seeds"] for mu, row in rows.items()} == {0.01: 4, 0.5: 1}
    assert rows[0.5]["best_sd"] is None


def test_what_differs_has_a_column_and_what_does_not_has_none(found: Overview) -> None:
    assert set(found.differing) == {"mu", "fewfed"}
    first = show(*(Path(row["folder"].split("; ")[0]) for row in found.table if row["method"] == "fedavg"))
    assert first.differing == ["fewfed"]


def test_an_unfinished_run_shows_how_far_it_came(found: Overview, root: Path) -> None:
    one = row(found, method="local")
    lines = (root / "deep" / "er" / "killed" / METRICS).read_text().splitlines()
    assert (one["state"], one["done"], one["rounds"]) == ("unfinished", 2, 9)
    assert one["last_mean"] == json.loads(lines[1])["accuracy"]
    assert "2/9" in str(found)


def test_a_run_of_another_version_is_read(found: Overview) -> None:
    one = row(found, fewfed="0.1.0")
    assert (one["method"], one["state"], one["best_mean"], one["mb_up"]) == ("fedavg", "finished", 0.5, 20 / 1e6)
    assert "processes" not in one


def test_an_unfinished_run_of_another_version(tmp_path: Path) -> None:
    (one,) = show(of_version_01(tmp_path / "old", finished=False)).table
    assert (one["state"], one["done"], one["last_mean"]) == ("unfinished", 1, 0.25)


def test_the_same_run_is_counted_once(root: Path, tmp_path: Path) -> None:
    one = root / "alone"
    shutil.copytree(one, tmp_path / "copy")
    found = show(one, root / "." / "alone", tmp_path / "copy")
    assert [row["seeds"] for row in found.table] == [1]
    assert found.repeated == (tmp_path / "copy",)
    assert "the same settings and seed" in str(found)


@pytest.mark.parametrize("name", [CONFIG, METRICS, RESULT])
def test_a_changed_file_is_damage_and_its_numbers_are_not_shown(name: str, root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "alone", tmp_path / "run")
    text = (tmp_path / "run" / name).read_text()
    (tmp_path / "run" / name).write_text(text.replace('"round', '"Round', 1).replace('"best"', '"Best"', 1))
    found = show(tmp_path / "run", root / "first")
    (one,) = (row for row in found.table if row["state"] == "damaged")
    assert one["best_mean"] is None
    assert name in one["problem"]
    assert f"damaged: {tmp_path / 'run'}: " in str(found)


def test_a_lost_file_is_damage_or_an_unfinished_run(root: Path, tmp_path: Path) -> None:
    for name, state in ((CONFIG, "damaged"), (METRICS, "damaged"), (RESULT, "unfinished"), (CHECKPOINT, "finished")):
        shutil.copytree(root / "alone", tmp_path / name)
        (tmp_path / name / name).unlink()
        assert look_at(tmp_path / name).state == state


def test_a_method_file_is_not_run_and_is_called_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from dataclasses import dataclass\nfrom fewfed.methods.fedavg import FedAvg\n"
        '@dataclass(frozen=True)\nclass Mine(FedAvg):\n    """Mine."""\n    name = "mine"\n'
    )
    (tmp_path / "file.py").write_text(source)
    for number in (1, 2):
        run(tmp_path / "file.py", small(rounds=1), SHORT, out=tmp_path / f"run{number}")
        (tmp_path / "file.py").write_text(f"{source}\n# {number}\n")
    (tmp_path / "file.py").write_text("raise SystemExit")
    found = show(tmp_path)
    assert [row["method"] for row in found.table] == ["mine", "mine"]
    assert found.differing == ["method file"]
    assert all(row["method file"].startswith("file.py ") for row in found.table)
    (tmp_path / "run1" / RESULT).unlink()
    assert look_at(tmp_path / "run1").method == "mine"


def test_folders_without_runs_are_told(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(RunError, match="holds no run"):
        survey([tmp_path])
    with pytest.raises(RunError, match="cannot look into"):
        survey([tmp_path / "nowhere"])
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="cannot look into"):
        survey([tmp_path / "file"])


def test_a_run_that_is_deleted_meanwhile_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the listing of a folder and a look into what stood there, and between that and its reading."""
    for name in ("a", "b/run", "c", "d"):
        write_run(tmp_path / name, seed=ord(name[0]))
    listed, looked = os.scandir, look_at

    def scandir(folder: Any) -> Any:
        entries = listed(folder)
        if folder == tmp_path:
            names = list(entries)
            shutil.rmtree(tmp_path / "b")
            return contextlib.nullcontext(iter(names))
        return entries

    def look(folder: Path) -> Found:
        shutil.rmtree(tmp_path / "c", ignore_errors=True)
        return looked(folder)

    monkeypatch.setattr(survey_module, "look_at", look)
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", scandir)
        found = survey([tmp_path])
    assert [(run.folder.name, run.state) for run in found] == [("a", "finished"), ("d", "finished")]


def test_a_folder_that_must_not_be_looked_into_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "open")
    write_run(tmp_path / "locked" / "run")
    is_root = os.geteuid() == 0
    monkeypatch.chdir(tmp_path)  # What lies above may be the owner's alone.
    tmp_path.chmod(0o755)
    (tmp_path / "locked").chmod(0)
    try:
        if is_root:  # To whom nothing is forbidden; what is open is the owner's own.
            for each in ((tmp_path / "open"), *(tmp_path / "open").iterdir()):
                os.chown(each, 65534, 65534)
            os.seteuid(65534)
        found = survey([Path()])
    finally:
        if is_root:
            os.seteuid(0)
        (tmp_path / "locked").chmod(0o700)
    assert [(run.folder.name, run.state) for run in found] == [("locked", "damaged"), ("open", "finished")]
    assert "ermission denied" in found[0].problem


def test_links_and_pipes_are_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    os.symlink(root / "alone", tmp_path / "linked" / "run")
    with pytest.raises(RunError, match="holds no run"):
        survey([tmp_path / "linked"])
    for name, make in (("link", lambda path: os.symlink("/etc/passwd", path)), ("pipe", os.mkfifo)):
        (tmp_path / name).mkdir()
        make(tmp_path / name / CONFIG)
        assert look_at(tmp_path / name).state == "damaged"


def test_letters_that_a_terminal_obeys_are_not_printed(tmp_path: Path) -> None:
    folder = of_version_01(tmp_path / "old")
    for name in (CONFIG, RESULT):
        text = (folder / name).read_text().replace('"fedavg"', json.dumps("fed\x1b[2Javg[red]\ud800"))
        (folder / name).write_text(text)
    shown = str(show(folder))
    assert "\x1b" not in shown
    assert "avg[red]" in shown
    assert show(folder).to_csv().encode()


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4), st.just(10**400)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=4), inner, max_size=2)),
    max_leaves=4,
)
PLACES = [
    (CONFIG, key) for key in ("fewfed", "label", "method", "method_fields", "experiment", "training", "data_options",
                              "executors", "inputs", "experiment.data", "experiment.clients", "experiment.seed",
                              "experiment.rounds", "experiment.noise", "experiment.split", "training.lr", "inputs.code")
] + [(RESULT, key) for key in ("method", "preset", "clients", "accuracy", "accuracy.best", "bytes", "bytes.up")] + [
    (METRICS, key) for key in ("round", "accuracy", "bytes", "bytes.up")
]  # fmt: skip


def changed(text: str, key: str, value: Any) -> str:
    content = json.loads(text)
    *path, last = key.split(".")
    inside = content
    for name in path:
        inside = inside[name]
    inside[last] = value
    return json.dumps(content)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(PLACES), JSON, st.booleans())
def test_whatever_a_file_holds_there_is_a_table(
    tmp_path: Path, place: tuple[str, str], value: Any, finished: bool
) -> None:
    """Without digests, so that every value is looked at."""
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
    folder, _ = of_version_01(tmp_path / "runs" / "odd", finished=finished), of_version_01(tmp_path / "runs" / "fine")
    name, key = place
    if (folder / name).exists():
        lines = (folder / name).read_text().splitlines() if name == METRICS else [(folder / name).read_text()]
        (folder / name).write_text("\n".join([changed(lines[0], key, value), *lines[1:], ""]))
    found = show(tmp_path / "runs")
    assert str(found)
    assert found._repr_html_()
    assert list(csv.DictReader(io.StringIO(found.to_csv())))
    assert json.dumps(found.as_json(), default=str)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([CONFIG, RESULT, METRICS]), st.binary(max_size=30))
def test_bytes_of_any_kind_are_damage(tmp_path: Path, name: str, content: bytes) -> None:
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    (of_version_01(tmp_path / "run") / name).write_bytes(content)
    assert look_at(tmp_path / "run").state in ("damaged", "finished")
    assert str(overview(survey([tmp_path])))


# The command.


def test_the_command_shows_a_table_a_file_and_a_picture(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = ("--csv", str(tmp_path / "all.csv"), "--plot", str(tmp_path / "all.png"), "--json")
    code, out, err = called(capsys, monkeypatch, "show", str(root / "first"), str(root / "deep"), *chosen)
    assert (code, err) == (0, "")
    report = json.loads(out.splitlines()[-1])
    assert [(row["method"], row["seed"]) for row in report["rows"]] == [
        ("fedavg", [0, 1, 2]), ("fedprox", [0, 1, 2]), ("local", [0]),
    ]  # fmt: skip
    with open(tmp_path / "all.csv", newline="") as file:
        assert [(row["method"], row["state"]) for row in csv.DictReader(file)] == [
            ("fedavg", "finished"), ("fedprox", "finished"), ("local", "unfinished"),
        ]  # fmt: skip
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
    assert "digits, qua:2, 6 clients" in out


def test_without_a_folder_the_usual_one_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = called(capsys, monkeypatch, "show")
    assert (code, out) == (2, "")
    assert err.startswith("error: cannot look into 'runs'")
    assert called(capsys, monkeypatch, "run", "fedavg", *SMALL)[0] == 0
    code, out, err = called(capsys, monkeypatch, "show")
    assert (code, err) == (0, "")
    assert "fedavg" in out


def test_a_damaged_run_is_told_on_standard_error_and_is_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (of_version_01(tmp_path / "a") / RESULT).write_text("{")
    of_version_01(tmp_path / "b")
    code, out, err = called(capsys, monkeypatch, "show", str(tmp_path))
    assert code == 0
    assert "damaged" in out
    assert err.startswith(f"damaged: {tmp_path / 'a'}: ")


def test_the_headline_number_of_segmented_images_is_called_what_it_is(tmp_path: Path) -> None:
    """In their records `accuracy` is the Dice of foreground classes."""
    random = np.random.default_rng(0)
    x = random.normal(size=(8, 1, 16, 16)).astype(np.float32)
    images = Examples(torch.tensor(x), torch.tensor((x[:, 0] > 0.5).astype(np.int64)))
    sites = {"site": np.arange(8) % 2}
    data = Dataset("vessels", images, images, 2, groups=sites, test_groups=sites, task="segmentation")
    settings = {"split": "site", "clients": 0, "rounds": 1, "network": "unet-small"}
    result = run("fedavg", settings, SHORT, data=data, out=tmp_path / "run", progress=False)
    (found,) = survey([tmp_path])
    assert found.metric == "dice"
    assert found.summary is not None
    assert found.summary.last == result.accuracy.last
    assert found.curve == ((1, result.accuracy.last),)
    assert "Dice in %" in str(overview([found]))
    (task,) = contents([found]).tasks
    assert "Judged by Dice on the test part" in " ".join(task.described)
