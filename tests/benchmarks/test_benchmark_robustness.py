"""The table of attacks and defences: it is that of the kept results, and its cells are runs that can be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import robustness

from fewfed.runs.experiment import resolve

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "benchmarks" / "results" / "robustness.json"


def test_the_page_has_the_table_of_the_kept_results() -> None:
    kept = json.loads(KEPT.read_text())
    assert robustness.table(kept["runs"]) in (ROOT / "docs" / "robust.md").read_text(), (
        "run: python benchmarks/robustness.py --read benchmarks/results/robustness.json --page docs/robust.md"
    )


def test_the_kept_results_are_of_the_runs_that_the_benchmark_asks_for() -> None:
    kept = json.loads(KEPT.read_text())["runs"]
    first = kept[0]
    seeds = 1 + max(run["seed"] for run in kept)
    asked = list(robustness.cells(seeds, first["rounds"], first["split"]))
    names = ("method", "attack", "defence", "seed", "rounds", "split")
    assert sorted([str(run[name]) for name in names] for run in kept) == sorted(
        [str(getattr(cell, name)) for name in names] for cell in asked
    )
    assert len(asked) == len(set(asked))
    for cell in asked:
        resolve(cell.method, cell.values)


def test_a_page_keeps_what_stands_around_its_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{robustness.MARKS[0]}\nold\n{robustness.MARKS[1]}\nafter\n")
    robustness.write_page(page, "new")
    assert page.read_text() == f"before\n{robustness.MARKS[0]}\nnew\n{robustness.MARKS[1]}\nafter\n"


def test_a_cell_runs_and_says_whom_the_defence_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robustness, "CLIENTS", 10)
    found = robustness.run(robustness.Cell("fedavg", "boost", "clipped", 0, 1, "iid"))
    honest, bad = found["defended"]["clipped"]
    assert len(found["attackers"]) == bad == 2
    assert 5 <= honest + bad < 10  # Half by their weights, half by their BatchNorm.
    assert "2 of 10 clients attack (boost, scale 10)" in found["note"]
