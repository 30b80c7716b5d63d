"""Models that were scored beside the one a method predicts with: an average over rounds, and what it is made of."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import fewfed
from fewfed.report.live.report import LiveReport
from fewfed.report.live.watched_run import WatchedRun
from fewfed.report.page.contents import Contents, contents
from fewfed.report.page.detail import detail_of
from fewfed.report.page.render import render
from fewfed.report.page.sheets import Sheet
from fewfed.report.survey import look_at, survey
from report_support import write_run
from run_support import SHORT, small


def page_of(folder: Path) -> Contents:
    return contents(survey([folder]))


def table(folder: Path) -> Sheet:
    (task,) = page_of(folder).tasks
    assert task.beside is not None
    return task.beside


def averaged(folder: Path, seed: int, own: float, plain: Any, metric: str = "accuracy", **more: Any) -> Path:
    record = {"beside": {"unaveraged": {metric: plain}}}
    return write_run(folder, "averaged(flea)", seed, [own] * 3, metric=metric, record=record, **more)


def test_a_method_without_its_average_is_what_a_run_of_it_alone_comes_to(tmp_path: Path) -> None:
    """Two ways to the same numbers: scored beside the average, and trained by itself."""
    fewfed.compare(["flea", "averaged(flea)"], small(rounds=3), SHORT, seeds=2, out=tmp_path / "runs")
    (task,) = page_of(tmp_path / "runs").tasks
    assert task.beside is not None
    alone = next(row for row in task.results.rows if row[0].text == "flea")
    (beside,) = task.beside.rows
    assert [cell.text for cell in beside[:2]] == ["averaged(flea)", "unaveraged"]
    assert [(cell.text, cell.value) for cell in beside[2:5]] == [(cell.text, cell.value) for cell in alone[1:4]]
    assert "without the average over rounds" in task.beside.note
    assert "Other models of the same runs" in render(page_of(tmp_path / "runs"))


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_the_difference_is_that_of_scipys_paired_test(tmp_path: Path, metric: str) -> None:
    random = np.random.default_rng(0)
    own, plain = random.uniform(0.6, 0.8, 6), random.uniform(0.5, 0.7, 6)
    for seed in range(6):
        averaged(tmp_path / f"r{seed}", seed, own[seed], plain[seed], metric)
    found = table(tmp_path)
    (row,) = csv.DictReader(io.StringIO(found.csv()))
    told = stats.ttest_rel(own, plain).confidence_interval(0.95)
    assert float(row["last10_difference"]) == pytest.approx(np.mean(own - plain))
    assert (float(row["last10_low"]), float(row["last10_high"])) == pytest.approx((told.low, told.high))
    assert float(row["last_mean"]) == pytest.approx(plain.mean())
    assert float(row["last_sd"]) == pytest.approx(plain.std(ddof=1))
    better = (own < plain) if metric == "loss" else (own > plain)
    assert found.rows[0][-1].text == f"{better.sum()} of 6"


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    averaged(tmp_path / "a", 0, 0.7, 0.6)
    found = table(tmp_path)
    assert [cell.text for cell in found.rows[0]] == ["averaged(flea)", "unaveraged", *["60.0"] * 3, "+10.0", "1 of 1"]
    assert "one seed, no interval" in found.note
    assert "±" not in found.said


def test_where_one_model_is_scored_nothing_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "flea")
    (task,) = page_of(tmp_path).tasks
    assert task.beside is None
    assert "Other models" not in render(page_of(tmp_path))


def test_a_live_page_knows_as_much(tmp_path: Path) -> None:
    folder = averaged(tmp_path / "a", 0, 0.7, 0.6)
    seen = WatchedRun(folder)
    seen.look(float("inf"))
    kept = detail_of(seen.found, seen.records)
    assert kept == detail_of(look_at(folder))
    assert kept.beside["unaveraged"].last == 0.6
    assert "Other models of the same runs" in LiveReport().compose([seen])


@pytest.mark.parametrize("value", [float("nan"), None, "</script>", [0.5]])
def test_what_is_no_number_costs_that_model_alone(tmp_path: Path, value: Any) -> None:
    averaged(tmp_path / "a", 0, 0.7, value)
    found = page_of(tmp_path)
    assert found.tasks[0].beside is None
    assert found.tasks[0].results.rows[0][1].text == "70.0"
    assert found.tasks[0].curves is not None


def test_a_model_that_diverged_in_one_round_has_no_mean_of_the_others(tmp_path: Path) -> None:
    folder = averaged(tmp_path / "a", 0, 0.7, 0.6)
    found = look_at(folder)
    records = [{"round": n, "bytes": {"up": 0, "down": 0}, "accuracy": 0.7} for n in (1, 2)]
    plain = [{**record, "beside": {"unaveraged": {"accuracy": 0.6}}} for record in records]
    assert detail_of(found, plain).beside["unaveraged"].last10 == 0.6
    diverged = [plain[0], {**records[1], "beside": {"unaveraged": {"accuracy": float("nan")}}}]
    assert detail_of(found, diverged).beside == {}


def test_names_of_models_are_text(tmp_path: Path) -> None:
    evil = "</td><script>alert(1)</script>"
    write_run(tmp_path / "a", record={"beside": {evil: {"accuracy": 0.5}}})
    assert evil not in render(page_of(tmp_path))
    assert table(tmp_path).rows[0][1].text == evil
