"""`fewfed reproduce` from a study to the table beside the published numbers."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from small_study import STUDY, write_study

from run_support import called

Fixture = tuple[pytest.CaptureFixture[str], pytest.MonkeyPatch]


@pytest.fixture
def at(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fixture:
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path / "reproduce")
    return capsys, monkeypatch


def results(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{pattern}/result.json"))]


def test_a_table_beside_the_published_numbers(at: Fixture, tmp_path: Path) -> None:
    code, out, err = called(*at, "reproduce", "small", "--jobs", "1", "--json")
    assert code == 0, err
    root = tmp_path / "runs" / "reproduce" / "small"
    with (root / "table.csv").open(newline="") as file:
        rows = {(row["split"], row["method"]): row for row in csv.DictReader(file)}
    assert list(rows) == [(s, m) for s in ("qua:2", "iid") for m in ("fedavg", "flea, half")]
    for (split, method), row in rows.items():
        slug = f"digits-{split.replace(':', '-')}-clients6-{'fedavg' if method == 'fedavg' else 'flea-half'}-seed*"
        ours = [100 * run["accuracy"]["best"] for run in results(root, slug)]
        assert len(ours) == int(row["seeds"]) == 2
        assert float(row["best_mean"]) == pytest.approx(statistics.fmean(ours), abs=0.006)
        assert float(row["best_sd"]) == pytest.approx(statistics.stdev(ours), abs=0.006)
        assert (row["correlation"] == "") == (method == "fedavg")
    avg = rows["qua:2", "fedavg"]
    assert (avg["published_mean"], avg["published_sd"]) == ("20.00", "1.50")
    assert float(avg["difference"]) == pytest.approx(float(avg["best_mean"]) - 20, abs=0.011)
    assert rows["iid", "fedavg"]["published_sd"] == ""
    assert rows["qua:2", "flea, half"]["published_mean"] == rows["qua:2", "flea, half"]["difference"] == ""
    told = json.loads(out.splitlines()[-1])
    assert [row["published"] for row in told["rows"]][:2] == [{"mean": 20.0, "sd": 1.5}, None]
    assert "a trial study" in out


def test_finished_cells_are_kept_and_listed(at: Fixture, tmp_path: Path) -> None:
    one = ("reproduce", "small", "--jobs", "1", "--cells", "split=iid,method=fedavg,seed=0")
    assert called(*at, *one)[0] == 0
    root = tmp_path / "runs" / "reproduce" / "small"
    (result,) = root.glob("*/result.json")
    before = result.stat().st_mtime_ns
    code, out, _ = called(*at, "reproduce", "small", "--list", "--json")
    assert code == 0
    states = json.loads(out.splitlines()[-1])
    assert [state["state"] for state in states].count("finished") == 1
    assert [state["state"] for state in states].count("to do") == 7
    code, out, _ = called(*at, "reproduce", "small", "--jobs", "1", "--cells", "split=iid,method=fedavg", "--json")
    assert code == 0
    assert result.stat().st_mtime_ns == before
    assert json.loads(out.splitlines()[-1])["rows"][0]["seeds"] == 2


def test_a_changed_study_does_not_take_old_runs_for_its_own(at: Fixture, tmp_path: Path) -> None:
    one = ("reproduce", "small", "--jobs", "1", "--cells", "split=iid,method=fedavg,seed=0")
    assert called(*at, *one)[0] == 0
    write_study(tmp_path / "reproduce", STUDY.replace("batch = 16", "batch = 8"))
    code, _, err = called(*at, *one)
    assert code == 2
    assert "other settings" in err


def test_a_trial_with_other_rounds_has_a_folder_of_its_own(at: Fixture, tmp_path: Path) -> None:
    one = ("reproduce", "small", "--jobs", "1", "--cells", "split=iid,method=fedavg,seed=0", "--rounds", "1")
    code, out, _ = called(*at, *one)
    assert code == 0
    assert "a trial: the published numbers are those of 2 rounds" in out
    (result,) = results(tmp_path / "runs" / "reproduce" / "small-1-rounds", "*")
    assert result["rounds"] == 1


def test_missing_data_is_reported_and_left_out(at: Fixture, tmp_path: Path) -> None:
    text = STUDY.replace('data = "digits"', 'data = ["digits", "nowhere.npz"]')
    write_study(tmp_path / "reproduce", text)
    cells = ("--cells", "split=iid,method=fedavg,seed=0")
    code, out, err = called(*at, "reproduce", "small", "--jobs", "1", *cells, "--json")
    assert code == 0
    assert "left out: 1 cells" in err.replace("\n", " ")
    told = json.loads(out.splitlines()[-1])
    assert [row["data"] for row in told["rows"]] == ["digits"]
    assert list(told["missing_data"]) == ["nowhere.npz"]
    code, out, _ = called(*at, "reproduce", "small", "--list", "--json", *cells)
    assert {state["data"]: state["state"] for state in json.loads(out.splitlines()[-1])} == {
        "digits": "finished",
        "nowhere.npz": "without data",
    }
    code, _, err = called(*at, "reproduce", "small", "--cells", "data=nowhere.npz")
    assert code == 2
    assert "none of the 8 cells can be run" in err


def test_a_cell_that_fails_costs_no_other(at: Fixture, tmp_path: Path) -> None:
    text = STUDY + '\n[[set]]\nwhen = { split = "iid", seed = 1 }\nvolume = 0.001\n'
    write_study(tmp_path / "reproduce", text)
    code, out, err = called(*at, "reproduce", "small", "--jobs", "1", "--cells", "split=iid,method=fedavg", "--json")
    assert code == 2
    assert "1 of 2 cells failed" in err
    assert json.loads(out.splitlines()[-1])["rows"][0]["seeds"] == 1


def test_a_curve_is_checked(at: Fixture, tmp_path: Path) -> None:
    text = STUDY.replace('["qua:2", "iid"]', '"iid"').replace('["fedavg", "flea, half"]', '"flea, half"')
    text += "".join(
        f'\n[[curve]]\nquantity = "{quantity}"\nround = {round}\nvalue = 50\nband = {band}\n'
        for quantity, round, band in (("best", 2, 50), ("accuracy", 1, 0.0001), ("mean", 50, 5))
    )
    text = text.replace(
        "[published.spelling.method]", "[published.spelling.clients]\n6 = 6\n[published.spelling.method]"
    )
    text = text.replace('[published.spelling.split]\n"qua:2" = "Quantity(2)"\n', "")
    write_study(tmp_path / "reproduce", text, "where,method,mean,std\nIID,FLea*,50,1\n")
    code, out, err = called(*at, "reproduce", "small", "--jobs", "1", "--cells", "seed=0", "--json")
    assert code == 0, err
    assert [point["inside"] for point in json.loads(out.splitlines()[-1])["curve"]] == [True, False, None]


def test_names_and_mistakes(at: Fixture, tmp_path: Path) -> None:
    code, out, _ = called(*at, "reproduce", "--json")
    assert (code, json.loads(out)) == (0, [{"name": "small", "what": "two methods on digits"}])
    for arguments, sentence in (
        (("smal",), "did you mean 'small'"),
        (("small", "--cells", "sed=1"), "did you mean 'seed'"),
        (("--list",), "which table or figure"),
        (("small", "--from", str(tmp_path / "none")), "--from DIR"),
    ):
        code, _, err = called(*at, "reproduce", *arguments)
        assert code == 2
        assert sentence in err
