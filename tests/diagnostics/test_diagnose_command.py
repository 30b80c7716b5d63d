"""`fewfed diagnose` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fewfed import run
from run_support import SHORT, called, small

TINY = ("--network", "mlp", "--clients", "6", "--cohort", "3", "--rounds", "2", "--epochs", "1", "--batch", "16")


def test_features(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("diagnose", "features", "fedavg", *TINY, "--watch", "2", "--out", str(tmp_path / "run"))
    picture = tmp_path / "map.png"
    code, out, _ = called(capsys, monkeypatch, *arguments, "--plot", str(picture), "--json")
    assert code == 0
    found = json.loads(out.splitlines()[-1])["rounds"]
    assert [record["round"] for record in found] == [1, 2]
    assert found[0]["aggregated"]["test"] == found[1]["before"]["test"]
    assert json.loads((tmp_path / "run" / "features.json").read_text()) == found
    assert picture.stat().st_size > 0


def test_mixing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("diagnose", "mixing", "flea", *TINY, "--out", str(tmp_path / "run"), "--json")
    code, out, _ = called(capsys, monkeypatch, *arguments)
    assert code == 0
    (found,) = json.loads(out.splitlines()[-1])["rounds"]
    assert found["round"] == 2
    assert len(found["weights"]) == 16


def test_finished_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("flea", small(), SHORT, out=tmp_path / "run")
    code, out, _ = called(capsys, monkeypatch, "diagnose", "rounds", result.folder, "--target", "0", "--target",
                          "1", "--json")  # fmt: skip
    assert code == 0
    assert json.loads(out.splitlines()[-1])[0]["reached"] == {"0": 1, "1": None}
    code, out, _ = called(capsys, monkeypatch, "diagnose", "exposure", result.folder, "--json")
    assert code == 0
    curve = json.loads(out.splitlines()[-1])["exposure"]
    assert curve[:2] == [0.0, 0.25]  # three of six to three of six
    assert len(curve) == 3


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("features", "scaffold"), "keeps state"),
        (("mixing", "fedavg"), "mixed nothing"),
        (("rounds", "nowhere", "--target", "0.5"), "not a run folder"),
        (("exposure", "nowhere"), "not a run folder"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    extra = TINY if arguments[0] in ("features", "mixing") else ()
    code, _, err = called(capsys, monkeypatch, "diagnose", *arguments, *extra)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
