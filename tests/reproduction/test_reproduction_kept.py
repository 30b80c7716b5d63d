"""Finished cells that are kept: nothing lost, nothing stale, the next ones in a sensible order, and stopped in time."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import random
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_study import STUDY, write_study

from fewfed.errors import DataError, RunError
from fewfed.reproduction import kept as keeping
from fewfed.reproduction.comparison import compared, rich_table, to_csv
from fewfed.reproduction.kept import Kept, digest_of
from fewfed.reproduction.library import Library
from fewfed.reproduction.outcome import Outcome, outcome_of
from fewfed.reproduction.page import page
from fewfed.reproduction.study import Planned, Study
from fewfed.reproduction.turns import in_turn
from run_support import called

Fixture = tuple[pytest.CaptureFixture[str], pytest.MonkeyPatch]
MADE = {"fewfed": "0", "torch": "2", "hardware": "a machine", "commit": "abc"}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Library(write_study(tmp_path / "reproduce")).study("small")


@pytest.fixture
def at(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fixture:
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path / "reproduce")
    return capsys, monkeypatch


def outcome(values: list[float], seconds: float = 1.0, **others: Any) -> Outcome:
    rounds = tuple(range(1, len(values) + 1))
    return Outcome("accuracy", rounds, tuple(values), len(values), seconds, **others)


def test_a_record_comes_back_as_it_was(study: Study, tmp_path: Path) -> None:
    kept, run = Kept(tmp_path / "kept"), study.runs[0]
    given = Outcome("accuracy", (2, 4), (0.25, 0.5), 4, 12.5, 3, "a note", {"correlation": 0.125})
    path = kept.add(study, run, given, MADE)
    (record,) = kept.fitting(study).values()
    assert (record.outcome, record.made) == (given, MADE)
    before = path.read_bytes()
    kept.add(study, run, given, MADE)
    assert path.read_bytes() == before
    assert len(before) < 600


BYTES = {"up": 3_000_000, "down": 500_000}


def test_what_was_sent_and_what_leaks_of_it_is_kept_and_shown(study: Study, tmp_path: Path) -> None:
    """Of two seeds the mean; the last that was measured counts; where nobody shares rows nothing stands there."""
    found = {"phase": "share", "attacker": "ridge", "chance": 0.1, "rows": 4, "among": 9, "held": 7}
    rest: dict[str, Any] = {"seconds": 1.0, "failed": [], "phases": {}, "bytes": BYTES, "accuracy": 0.5}
    kept, first = Kept(tmp_path / "kept"), study.runs[0].setting
    runs = [run for run in study.runs if run.setting == first]
    other = next(run for run in study.runs if run.setting != first)
    for run, measured in ((runs[0], (0.9, 0.25, 0.5)), (runs[1], (0.1, 0.75, 1.0)), (other, None)):
        records = [{"round": 1, **rest}, {"round": 2, **rest}, {"round": 3, **rest}]
        if measured:
            records[0]["leak"] = {**found, "r2": measured[0], "reidentified": 0.0}
            records[1]["leak"] = {**found, "r2": measured[1], "reidentified": measured[2]}
        kept.add(study, run, outcome_of(study, records), MADE)
    records_kept = kept.fitting(study)
    rows = compared(study, [(run, records_kept[run.name].outcome) for run in (*runs, other)])
    assert [row.megabytes for row in rows] == [(9.0, 1.5), (9.0, 1.5)]
    assert [row.leak for row in rows] == [(0.5, 0.75), None]
    lines = to_csv(study, rows).splitlines()
    assert ",mb_up,mb_down,leak_r2,leak_reidentified,note" in lines[0]
    assert ",9,1.5,0.5000,0.7500," in lines[1]
    assert ",9,1.5,,," in lines[2]
    text = page(Library(write_study(tmp_path / "reproduce")), kept)
    assert "| verdict | leak |" in text
    assert text.count("| 0.50 75% |") == 1
    shown = Console(width=200, file=io.StringIO())
    shown.print(rich_table(study, rows))
    assert "0.50 75%" in shown.file.getvalue()  # type: ignore[attr-defined]


def test_the_round_of_best_validation_is_kept_compared_and_shown(study: Study, tmp_path: Path) -> None:
    published = study.published
    assert published is not None
    study = dataclasses.replace(study, published=dataclasses.replace(published, compare="best_validation"))
    rest: dict[str, Any] = {"seconds": 1.0, "failed": [], "phases": {}, "bytes": BYTES}
    curves = [((0.5, 0.9), (0.25, 0.3), (0.75, 0.9)), ((0.5, 0.2), (0.375, 0.4), (0.25, 0.3))]
    runs = [run for run in study.runs if run.setting == study.runs[0].setting]
    kept = Kept(tmp_path / "kept")
    for run, curve in zip(runs, curves, strict=True):
        records = [
            {"round": number, "accuracy": test, "validation": {"accuracy": own}, **rest}
            for number, (test, own) in enumerate(curve, 1)
        ]
        kept.add(study, run, outcome_of(study, records), MADE)
    records_kept = kept.fitting(study)
    (row,) = compared(study, [(run, records_kept[run.name].outcome) for run in runs])
    mean = (0.5 + 0.375) / 2
    assert row.best_validation is not None
    assert row.best_validation.mean == pytest.approx(mean)
    assert row.published is not None
    assert row.difference == pytest.approx(100 * mean - row.published.mean)
    library = Library(write_study(tmp_path / "reproduce", STUDY.replace("[published.match]", COMPARED, 1)))
    text = page(library, kept)
    assert "| best | last | last 10 | best valid. |" in text
    spread = 100 * statistics.stdev([0.5, 0.375])
    assert f"| 43.8 ± {spread:.1f} |" in text
    cells = {line.count("|") for line in text.splitlines() if line.startswith(("| data |", "| digits |"))}
    assert cells == {14}


COMPARED = 'compare = "best_validation"\n\n[published.match]'


def test_other_settings_make_a_record_stale_and_the_way_of_computing_does_not(study: Study) -> None:
    resolved = study.runs[0].resolved
    same = [
        dataclasses.replace(resolved, experiment=dataclasses.replace(resolved.experiment, **change))
        for change in ({"executor": "sequential"}, {"checkpoint_seconds": 1.0}, {"exact": True})
    ]
    other = [
        dataclasses.replace(resolved, experiment=dataclasses.replace(resolved.experiment, seed=99)),
        dataclasses.replace(resolved, training=dataclasses.replace(resolved.training, lr=0.5)),
        dataclasses.replace(resolved, options=dataclasses.replace(resolved.options, normalise="none")),
        dataclasses.replace(resolved, spec="fedprox"),
    ]
    assert {digest_of(each) for each in same} == {digest_of(resolved)}
    assert len({digest_of(each) for each in [resolved, *other]}) == 5


def test_a_stale_record_does_not_count(study: Study, tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept")
    kept.add(study, study.runs[0], outcome([0.5]), MADE)
    changed = write_study(tmp_path / "changed", STUDY.replace("batch = 16", "batch = 8"))
    assert len(kept.fitting(study)) == 1
    other = Library(changed).study("small")
    assert (len(kept.of(other)), len(kept.fitting(other))) == (1, 0)


def test_a_record_of_another_metric_does_not_count(study: Study, tmp_path: Path) -> None:
    """What it measured would stand beside what the study compares now."""
    kept = Kept(tmp_path / "kept")
    kept.add(study, study.runs[0], outcome([0.5]), MADE)
    other = dataclasses.replace(study, metric=("accuracy_own_group", "accuracy_groups"))
    assert kept.stale(study) == []
    assert (kept.fitting(other), kept.stale(other)) == ({}, [study.runs[0].name])
    either = dataclasses.replace(study, metric=("accuracy_own_group", "accuracy"))
    assert (list(kept.fitting(either)), kept.stale(either)) == ([study.runs[0].name], [])


def test_stale_records_are_told_also_where_another_study_answers(at: Fixture, tmp_path: Path) -> None:
    folder = tmp_path / "reproduce"
    write_study(folder, STUDY.replace('name = "small"', 'name = "other"'), name="other")
    library, kept = Library(folder), Kept(folder / "results")
    runs = library.study("small").runs
    kept.add(library.study("small"), runs[0], outcome([0.5]), MADE)
    changed = STUDY.replace("batch = 16", "batch = 8")
    write_study(folder, changed)
    write_study(folder, changed.replace('name = "small"', 'name = "other"'), name="other")
    now = Library(folder)
    for run in now.study("other").runs[:2]:
        kept.add(now.study("other"), run, outcome([0.25], terms={"correlation": 0.5}), MADE)
    assert len(kept.fitting(now.study("small"))) == 2
    assert kept.stale(now.study("small")) == [runs[0].name]
    code, _, err = called(*at, "reproduce", "small", "--from-kept")
    assert code == 0, err
    assert "1 kept records of small were made with other settings" in " ".join(err.split())


DAMAGES: dict[str, bytes] = {
    "not packed": b"{}",
    "cut off": gzip.compress(b"{}" * 100)[:15],
    "no JSON": gzip.compress(b"what"),
    "nothing in it": gzip.compress(b"{}"),
    "a list": gzip.compress(b"[1]"),
    "nested without end": gzip.compress(b"[" * 100_000),
    "a bomb": gzip.compress(b"[" + b"1," * 30_000_000),
}


@pytest.mark.parametrize(
    "changed",
    [
        {"rounds": float("inf")},
        {"rounds": 10**15, "evaluated": None},
        {"rounds": 1e300},
        {"rounds": -1},
        {"values": [float("nan")]},
        {"values": [float("inf")]},
        {"values": [0.5, 0.6]},
        {"values": []},
        {"evaluated": [float("inf")]},
        {"evaluated": 1},
        {"seconds": None},
        {"terms": []},
        {"made": None},
        {"best_validation": 1},
        {"best_validation": float("inf")},
        {"megabytes": [1.0]},
    ],
)
def test_a_record_with_an_odd_value_is_named(changed: dict[str, Any], study: Study, tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept")
    path = kept.add(study, study.runs[0], outcome([0.5]), MADE)
    content = {**json.loads(gzip.decompress(path.read_bytes())), **changed}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    with pytest.raises(DataError, match=f"{path.name}' is no record of a finished cell"):
        kept.of(study)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_named(damage: str, study: Study, tmp_path: Path) -> None:
    kept = Kept(tmp_path / "kept")
    path = kept.add(study, study.runs[0], outcome([0.5]), MADE)
    path.write_bytes(DAMAGES[damage])
    with pytest.raises(DataError, match=f"{path.name}' is no record of a finished cell"):
        kept.of(study)


def test_records_do_not_outgrow_the_repository(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(tmp_path / "kept")
    kept.add(study, study.runs[0], outcome([0.5]), MADE)
    monkeypatch.setattr(keeping, "MOST_BYTES", 500)
    kept.add(study, study.runs[0], outcome([0.25]), MADE)  # In place of the other.
    with pytest.raises(RunError, match="more than 500 bytes"):
        kept.add(study, study.runs[1], outcome([random.Random(k).random() for k in range(200)]), MADE)


@pytest.mark.parametrize("seed", range(5))
def test_every_setting_has_its_turn_before_any_has_a_second(study: Study, seed: int) -> None:
    chance = random.Random(seed)
    finished: list[tuple[Planned, Outcome]] = []
    count = dict.fromkeys((run.setting for run in study.runs), 0)
    left = {run.name for run in study.runs}
    while left:
        ordered = in_turn(study.runs, finished)
        assert {run.name for run in ordered} == left
        first = ordered[0]
        assert count[first.setting] == min(count[run.setting] for run in study.runs if run.name in left), (
            "a setting with fewer seeds was to come first"
        )
        count[first.setting] += 1
        left.remove(first.name)
        finished.append((first, outcome([0.5], seconds=chance.uniform(1, 9))))


def test_the_cheapest_come_first(study: Study) -> None:
    """By what the same method took with another split."""
    known = {"fedavg": 5.0, "flea, half": 2.0}
    done = [run for run in study.runs if run.at["split"] == "iid" and run.at["seed"] == 0]
    finished = [(run, outcome([0.5], seconds=known[str(run.at["method"])])) for run in done]
    ordered = in_turn(study.runs, finished)
    first = [(run.at["split"], run.at["method"]) for run in ordered[:2]]
    assert first == [("qua:2", "flea, half"), ("qua:2", "fedavg")]


def test_the_metric_a_study_names_is_what_is_compared(study: Study) -> None:
    def record(number: int, **values: Any) -> dict[str, Any]:
        rest = {"seconds": 1.0, "failed": [], "phases": {"train": {"terms": {}}}, "bytes": BYTES}
        return {"round": number, **rest, **values}

    mean = dataclasses.replace(study, metric=("accuracy_own_group", "accuracy_groups"))
    common = [record(k, accuracy=0.9, accuracy_groups=0.1 * k) for k in (1, 2, 3)]
    personal = [record(k, accuracy=0.9, accuracy_groups=0.5, accuracy_own_group=0.2 * k) for k in (1, 2)]
    assert outcome_of(mean, common).values == pytest.approx((0.1, 0.2, 0.3))
    assert outcome_of(mean, personal).values == pytest.approx((0.2, 0.4))
    assert outcome_of(study, personal).values == (0.9, 0.9)
    with pytest.raises(RunError, match="accuracy_own_group or accuracy_groups, which the run did not measure"):
        outcome_of(mean, [record(1, accuracy=0.9)])


def test_verdicts(study: Study) -> None:
    """The published value of this cell is 20.0 +- 1.5."""
    runs = [run for run in study.runs if run.at["split"] == "qua:2" and run.at["method"] == "fedavg"]
    for values, expected in (((0.20, 0.22), "agrees"), ((0.30, 0.302), "higher"), ((0.10, 0.102), "lower")):
        (row,) = compared(study, [(run, outcome([v])) for run, v in zip(runs, values, strict=True)])
        spread = 100 * statistics.stdev(values)
        within = abs(100 * statistics.fmean(values) - 20) <= 2 * (spread**2 + 1.5**2) ** 0.5
        assert (row.verdict("best") == "agrees") == within
        assert row.verdict("best") == expected
    (row,) = compared(study, [(runs[0], outcome([0.9]))])
    assert row.verdict("best") == "one seed"


def test_kept_cells_make_the_same_table_as_their_runs(at: Fixture, tmp_path: Path) -> None:
    code, _, err = called(*at, "reproduce", "small", "--jobs", "1", "--keep", "--cells", "split=qua:2")
    assert code == 0, err
    table = tmp_path / "runs" / "reproduce" / "small" / "table.csv"
    before = table.read_text()
    table.unlink()
    code, _, err = called(*at, "reproduce", "small", "--from-kept")
    assert code == 0, err
    assert table.read_text() == before
    shutil.rmtree(tmp_path / "runs")  # As on a machine that only has the records.
    code, _, err = called(*at, "reproduce", "small", "--from-kept")
    assert code == 0, err
    assert table.read_text() == before
    assert len(list((tmp_path / "reproduce" / "results" / "small").iterdir())) == 4


def test_for_some_minutes_the_next_cells_are_run_and_kept(at: Fixture, tmp_path: Path) -> None:
    code, _, err = called(*at, "reproduce", "small", "--jobs", "1", "--minutes", "5", "--cells", "seed=0,method=fedavg")
    assert code == 0, err
    results = tmp_path / "reproduce" / "results" / "small"
    assert len(list(results.iterdir())) == 2
    for folder in list((tmp_path / "runs").rglob("*seed0")):  # Another machine has the records only.
        shutil.rmtree(folder)
    code, out, err = called(
        *at, "reproduce", "small", "--jobs", "1", "--minutes", "5", "--cells", "method=fedavg", "--json"
    )
    assert code == 0, err
    assert len(list(results.iterdir())) == 4
    assert not list((tmp_path / "runs").rglob("*seed0"))
    assert [row["seeds"] for row in json.loads(out.splitlines()[-1])["rows"]] == [2, 2]


def test_it_stops_in_time_and_goes_on_later(at: Fixture, tmp_path: Path) -> None:
    write_study(tmp_path / "reproduce", STUDY.replace("rounds = 2", "rounds = 100000"))
    began = time.monotonic()
    code, out, err = called(*at, "reproduce", "small", "--jobs", "1", "--minutes", "0.05")
    assert time.monotonic() - began < 30
    assert code == 0, err
    assert "8 cells are left" in out + err
    (checkpoint,) = (tmp_path / "runs").rglob("checkpoint.safetensors")
    assert checkpoint.exists()


def test_the_page_shows_what_was_run_and_what_was_not(study: Study, tmp_path: Path) -> None:
    library, kept = Library(tmp_path / "reproduce"), Kept(tmp_path / "kept")
    assert "- small: two methods on digits" in page(library, kept)
    for run, value in zip(study.runs[:2], (0.2, 0.3), strict=True):
        kept.add(study, run, outcome([value / 2, value]), MADE)
    made = page(library, kept)
    lines = [line for line in made.splitlines() if line.startswith("| digits")]
    assert len(lines) == 4
    assert sum("not run" in line for line in lines) == 3
    assert "| 2 | 25.0 ± 7.1 | 25.0 ± 7.1 | 18.8 ± 5.3 |" in lines[0]
    assert "| 20.00 ± 1.50 | +5.0 | agrees |" in lines[0]
    assert "2 of 8 cells" in made
    assert "a machine" in made
