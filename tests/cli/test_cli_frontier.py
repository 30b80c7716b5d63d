"""`fewfed frontier` as a user calls it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from fewfed.runs.folder import RunFolder
from run_support import SMALL, called

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
ASKED = ("frontier", "grouped(flea)", "--vary", "grouped.k=1,3", "--vary", "decorrelate=0", *SMALL, "--json")


def points(capsys: Capture, monkeypatch: Patch, *words: str) -> list[dict[str, Any]]:
    code, out, err = called(capsys, monkeypatch, *words)
    assert code == 0, err
    found: list[dict[str, Any]] = json.loads(out.splitlines()[-1])["points"]
    return found


def test_every_setting_has_its_score_its_leaks_and_its_bytes(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    root = tmp_path / "front"
    words = (*ASKED, "--set", "flea.share=1", "--attacks", "reconstruct", "--effort", "0.02", "--out", str(root))
    first = points(capsys, monkeypatch, *words)
    assert [point["setting"] for point in first] == [{"grouped.k": k, "decorrelate": "0"} for k in ("1", "3")]
    for point in first:
        assert {"leak: R2", "leak: re-identified", "MB up and down", "reconstruct: R2"} <= point["costs"].keys()
    alone, grouped = (point["costs"]["MB up and down"]["mean"] for point in first)
    assert grouped < alone, "a third of the rows is sent"
    folders = sorted(path.parent for path in root.rglob("result.json"))
    fields = [json.loads((folder / "config.json").read_text())["method_fields"] for folder in folders]
    assert sorted(str(each["k"]) for each in fields) == ["1", "3"]
    assert all(str(each["inner.decorrelate"]) == "0" for each in fields)
    rows = list(csv.DictReader((root / "frontier.csv").read_text().splitlines()))
    assert [row["grouped.k"] for row in rows] == ["1", "3"]
    # The same again takes what is there: runs, and what attacks found in them.
    for folder in folders:
        written = folder / "attacks" / "attacks.json"
        before = json.loads(written.read_text())
        before["findings"][0]["measures"][0]["value"] += 1000
        written.write_text(json.dumps(before))
        assert RunFolder(folder).result() is not None
    again = points(capsys, monkeypatch, *words)
    assert [point["accuracy"] for point in again] == [point["accuracy"] for point in first]
    assert again[0]["costs"] != first[0]["costs"], "findings are read from where they were kept"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--vary", "grouped.k=1,1"), "every value once"),
        (("--vary", "seed=1,2"), "'seed' is no setting of a method"),
        (("--vary", "grouped.kk=1,2"), "did you mean"),
        (("--attacks", "reconstuct"), "did you mean"),
        ((), "which settings?"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_run(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, words: tuple[str, ...], sentence: str
) -> None:
    vary = words if "--vary" in words or not words else ("--vary", "grouped.k=1,2", *words)
    asked = ("frontier", "grouped(flea)", *vary, *SMALL, "--out", str(tmp_path / "front"))
    code, _, err = called(capsys, monkeypatch, *asked)
    assert code == 2
    assert sentence in err
    assert not (tmp_path / "front").exists()


def test_a_method_that_sends_no_rows_has_bytes_alone(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    words = ("frontier", "fedprox", "--vary", "mu=0,1", *SMALL, "--json", "--out", str(tmp_path / "front"))
    found = points(capsys, monkeypatch, *words)
    assert [list(point["costs"]) for point in found] == [["MB up and down"]] * 2


def test_a_setting_that_sends_nothing_to_attack_costs_no_other_its_place(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    """Averages of more rows than a site has of any class are never sent: an empty cell, and a line that says so."""
    words = ("--set", "flea.share=1", "--attacks", "reconstruct", "--effort", "0.02", "--out", str(tmp_path / "front"))
    asked = ("frontier", "grouped(flea)", "--vary", "grouped.k=1,1000", *SMALL, "--json", *words)
    code, out, err = called(capsys, monkeypatch, *asked)
    assert code == 0, err
    one, none = json.loads(out.splitlines()[-1])["points"]
    assert "reconstruct: R2" in one["costs"]
    assert none["costs"].keys() == {"MB up and down"}
    assert "found nothing to work on in 1 runs" in out + err
    asked = (
        "frontier",
        "fedavg",
        "--vary",
        "lr=0.1",
        *SMALL,
        "--attacks",
        "reconstruct",
        "--out",
        str(tmp_path / "no"),
    )
    code, out, err = called(capsys, monkeypatch, *asked)
    assert code == 2
    assert "found nothing to work on in" in err
    assert "nor in any other run" in err
