"""A user's own table from the command line: what is read is told, sites are the clients, and runs go on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fewfed import Experiment, Training, resume, run
from fewfed.data.readers.options import DataOptions
from fewfed.runs.execute import execute
from fewfed.runs.experiment import Resolved, resolve
from fewfed.runs.prepare import prepare
from run_support import called

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
FLAGS = ("--label", "diagnosis", "--site", "hospital", "--missing", "drop", "--ignore", "name")
SHORT = ("--rounds", "2", "--epochs", "1", "--network", "mlp")


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    """Text labels, a category, names, an index, a missing cell and a hospital with one patient."""
    hospitals = ["Nord"] * 14 + ["Süd"] * 12 + ["Ost"] + ["West"] * 9
    lines = [",name,age,sex,diagnosis,hospital"]
    for i, hospital in enumerate(hospitals):
        age = "NA" if i == 3 else str(30 + i)
        lines.append(f"{i},P{i},{age},{'F' if i % 3 else 'M'},{'flu' if i % 2 else 'cold'},{hospital}")
    path = tmp_path / "patients.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_run_tells_what_it_reads(tmp_path: Path, patients: Path, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    code, text, err = called(capsys, monkeypatch, "run", "fedavg", "--data", str(patients), *FLAGS, *SHORT, "--json")
    assert code == 0, err
    for told in (
        "patients: 35 rows, 28 to train on and 7 to test (20% held out within each site).",
        "2 classes (column 'diagnosis'): cold (18), flu (17).",
        "4 sites (column 'hospital'): Nord (13), Ost (1), Süd (12), West (9).",
        "Without test rows, being small or not in the test part: Ost.",
        "Inputs: age and, one number a category, sex (F/M).",
        "Left out: name (as asked), Unnamed: 0 (it counts rows).",
        "Missing: 1 in age; 1 row was dropped.",
    ):
        assert told in err.splitlines()[0]
    result = json.loads(text.splitlines()[-1])
    assert (result["split"], result["clients"]) == ("site", 4)
    assert result["folder"] == "runs/fedavg-patients-site-seed0"
    assert [site["name"] for site in result["reading"]["sites"]] == ["Nord", "Ost", "Süd", "West"]
    config = json.loads((tmp_path / result["folder"] / "config.json").read_text())
    chosen = config["experiment"]
    assert (chosen["split"], chosen["clients"], chosen["cohort"]) == ("site", 4, 4.0)
    assert config["data_options"]["ignore"] == ["name"]


def test_a_comparison_goes_on_with_what_the_data_decided(
    tmp_path: Path, patients: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    command = ("compare", "fedavg", "fedprox", "--data", str(patients), *FLAGS, *SHORT, "--seeds", "2", "--jobs", "1")
    first = called(capsys, monkeypatch, *command, "--out", str(tmp_path / "out"))
    assert first[0] == 0, first[2]
    assert "site, 4 clients, 2 rounds" in " ".join(first[1].split())
    assert first[2].count("patients: 35 rows") == 1
    code, text, _ = called(capsys, monkeypatch, *command, "--out", str(tmp_path / "out"), "--json")
    assert code == 0
    told = json.loads(text.splitlines()[-1])
    assert [each["split"] for each in told["runs"]] == ["site"] * 4
    assert told["reading"]["dropped"] == 1
    other = called(capsys, monkeypatch, *command, "--out", str(tmp_path / "out"), "--split", "iid", "--clients", "3")
    assert other[0] == 2
    assert "other settings" in other[2]


def test_a_stopped_run_is_resumed_and_python_decides_alike(tmp_path: Path, patients: Path) -> None:
    options = DataOptions(label="diagnosis", site="hospital", missing="drop", ignore=("name",))
    experiment = Experiment(data=str(patients), rounds=2, network="mlp", executor="sequential")
    whole = run("fedavg", experiment, Training(epochs=1), options=options, out=tmp_path / "whole")
    assert (whole.split, whole.clients) == ("site", 4)
    values = {"data": str(patients), "rounds": 2, "network": "mlp", "executor": "sequential", "epochs": 1}
    said = {"label": "diagnosis", "site": "hospital", "missing": "drop", "ignore": "name"}

    class Stop:
        def after_round(self, view: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(prepare(resolve("fedavg", {**values, **said})), tmp_path / "stopped", [Stop()])
    recorded = Resolved.from_json(json.loads((tmp_path / "stopped" / "config.json").read_text()))
    assert recorded.experiment.is_settled
    assert recorded.options == options
    assert resume(tmp_path / "stopped").accuracy == whole.accuracy


def test_split_shows_sites_by_name(tmp_path: Path, patients: Path, capsys: Capture, monkeypatch: Patch) -> None:
    code, text, err = called(capsys, monkeypatch, "split", "--data", str(patients), *FLAGS, "--json")
    assert code == 0, err
    assert "4 sites (column 'hospital')" in err
    assert [name in text for name in ("Nord", "Ost", "Süd", "West", "cold", "flu")] == [True] * 6
    manifest = json.loads(text.splitlines()[-1])
    assert (manifest["rule"], manifest["clients"], manifest["reading"]["test_rows"]) == ("site", 4, 7)


@pytest.mark.parametrize(
    ("arguments", "mentions"),
    [
        (["--set", "missin=drop"], "unknown setting of data or split 'missin': did you mean 'missing'?"),
        (["--set", "mu=0.1"], "unknown setting of data or split 'mu'"),
        (["--missing", "guess"], "missing = 'guess': expected 'refuse' | 'mean' | 'drop'"),
        (["--label", "diagnoses"], "did you mean 'diagnosis'"),
        (["--size", "8"], "image_size = 8 needs image data"),
        (["--test-data", "none.csv"], "there is no file or folder none.csv for test_data"),
    ],
)
def test_mistakes_blame_no_method(
    patients: Path, capsys: Capture, monkeypatch: Patch, arguments: list[str], mentions: str
) -> None:
    """`split` blamed a method, 'fedavg', that nobody had named."""
    flags = [*FLAGS, *arguments] if "--label" not in arguments else [*arguments, *FLAGS[2:]]
    code, _, err = called(capsys, monkeypatch, "split", "--data", str(patients), *flags)
    assert (code, err.count("\n")) == (2, 1)
    assert mentions in err
    assert "fedavg" not in err


def test_split_takes_the_file_of_a_run(tmp_path: Path, patients: Path, capsys: Capture, monkeypatch: Patch) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f'method = "fedprox"\nmu = 0.5\nlr = 0.1\n[data_options]\nlabel = "diagnosis"\nignore = ["name"]\n'
        f'missing = "drop"\n[experiment]\ndata = "{patients}"\nsplit = "iid"\nclients = 3\n'
    )
    code, text, err = called(capsys, monkeypatch, "split", "--config", str(config))
    assert code == 0, err
    assert "3 clients" in text
    config.write_text(f'methods = ["fedprox"]\nmuh = 0.5\ndata = "{patients}"\n')
    code, _, err = called(capsys, monkeypatch, "split", "--config", str(config))
    assert code == 2
    assert "line 2" in err
