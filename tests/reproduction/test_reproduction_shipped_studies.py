"""The files of this repository: they can be read, and every number of the papers' tables has its runs."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from fewfed.methods.flea import FLea
from fewfed.reproduction.library import Library

FOLDER = Path(__file__).parents[2] / "reproduce"
LIBRARY = Library.at(FOLDER)
study_of = cache(LIBRARY.study)  # The largest take seconds to read.
FLEA = sorted(name for name in LIBRARY.names() if name.startswith("flea"))


@pytest.mark.parametrize("name", FLEA)
def test_it_can_be_read_and_says_what_it_is(name: str) -> None:
    study = study_of(name)
    assert study.what
    assert study.paper
    assert study.runs


@pytest.mark.parametrize(
    ("name", "table", "left_out"),
    [
        ("flea-table1", "flea_table1.csv", {}),
        ("flea-iclr-table2", "flea_iclr_table2.csv", {}),
        ("flea-iclr-table6", "flea_iclr_table6.csv", {}),
        ("flea-iclr-table7", "flea_iclr_table7.csv", {}),
        ("flea-iclr-table8", "flea_iclr_table8.csv", {}),
        ("flea-iclr-table9", "flea_iclr_table9.csv", {"feature_source": "Raw"}),
        ("flea-fig2-scarcity", "flea_fig2.csv", {}),
        ("flea-fig11-lambda", "flea_fig11.csv", {}),
    ],
)
def test_every_published_row_belongs_to_exactly_one_setting(name: str, table: str, left_out: dict[str, str]) -> None:
    study = study_of(name)
    assert study.published is not None
    assert study.published.table == table
    settings = {run.setting: run.at for run in study.runs}
    matched = [row for at in settings.values() if (row := study.published.row_of(at)) is not None]
    with (FOLDER / "published" / table).open(newline="") as file:
        expected = [
            row for row in csv.DictReader(file) if not left_out or any(row[k] != v for k, v in left_out.items())
        ]
    assert sorted(map(str, matched)) == sorted(map(str, expected))


def test_table_1_is_run_as_the_paper_says() -> None:
    study = study_of("flea-table1")
    assert len(study.runs) == 18 * 11 * 5
    cohorts = {run.at["clients"]: run.resolved.experiment.cohort_size(int(run.at["clients"])) for run in study.runs}
    assert cohorts == {500: 50, 1000: 100, 70: 7, 140: 14, 75: 8, 150: 15}
    for run in study.runs:
        training = run.resolved.training
        assert (run.resolved.experiment.rounds, training.batch, training.epochs) == (100, 32, 5)
        assert (training.optimizer, training.reset) == ("adam", "round")
        assert training.lr_at(0) == 1e-3
        assert training.lr_at(99) == pytest.approx(1e-3 * 0.98**99)
    ccvr = next(run for run in study.runs if run.at["method"] == "ccvr")
    assert ccvr.resolved.chosen.method.epochs == 20  # type: ignore[attr-defined]


def test_the_released_log_is_run_with_the_released_code() -> None:
    study = study_of("flea-log-har")
    (run,) = study.runs
    assert run.resolved.chosen.preset == "official"
    assert run.resolved.training.lr_at(49) == pytest.approx(1.18e-4)
    assert run.resolved.training.sampling == "released"
    assert run.resolved.experiment.legacy_seed == 1
    best = max(point.value for point in study.curve if point.quantity == "best")
    assert study.published is not None
    value = study.published.value_of(run.at)
    assert value is not None
    assert value.mean == best == 70.2


@pytest.mark.parametrize("name", [name for name in FLEA if "iclr" in name] + ["flea-table1", "flea-fig11-lambda"])
def test_each_of_the_two_papers_has_its_own_decorrelation(name: str) -> None:
    """The ICLR submission prints a trace form (its Eq. 5), the KDD paper distance correlation."""
    methods = [run.resolved.chosen.method for run in study_of(name).runs]
    forms = {method.decorrelation for method in methods if isinstance(method, FLea)}
    assert forms == {"trace" if "iclr" in name else "dcor"}


def test_ablations_differ_from_flea_in_what_they_are_named_after() -> None:
    study = study_of("flea-iclr-table8")
    fields = {str(run.at["method"]): dict(run.resolved.values) for run in study.runs}
    trace = {"decorrelation": "trace"}
    assert fields == {
        "fedmix": {},
        "flea": trace,
        "flea, lambda = 0.5": {**trace, "beta": float("inf")},
        "flea, lambda1 = 0": {**trace, "distil": 0.0},
        "flea, l = 1": {**trace, "cut": "stem"},
        "flea, l = 9": {**trace, "cut": "block2"},
    }
