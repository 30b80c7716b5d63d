"""The files of this repository: they can be read, and every number of the papers' tables has its runs."""

from __future__ import annotations

import csv
import math
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fewfed.data.splits import make_split
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
    released = [run for run in study.runs if run.at["method"] == "flea:official"]
    assert len(study.runs) - len(released) == 18 * 11 * 5
    assert {(run.at["data"], run.resolved.training.reset) for run in released} == {("har", "step")}
    cohorts = {run.at["clients"]: run.resolved.experiment.cohort_size(int(run.at["clients"])) for run in study.runs}
    assert cohorts == {500: 50, 1000: 100, 70: 7, 140: 14, 75: 8, 150: 15}
    for run in study.runs:
        if run in released:
            continue
        training = run.resolved.training
        assert (run.resolved.experiment.rounds, training.batch, training.epochs) == (100, 32, 5)
        assert (training.optimizer, training.reset) == ("adam", "round")
        assert training.lr_at(0) == 1e-3
        assert training.lr_at(99) == pytest.approx(1e-3 * 0.98**99)
    ccvr = next(run for run in study.runs if run.at["method"] == "ccvr")
    assert ccvr.resolved.chosen.method.epochs == 20  # type: ignore[attr-defined]


def test_the_released_log_is_run_with_the_released_code() -> None:
    study = study_of("flea-log-har")
    run, *others = study.runs
    assert len(others) == 4
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


@pytest.mark.parametrize("name", LIBRARY.names())
def test_clients_weigh_what_they_weigh_in_the_paper(name: str) -> None:
    """FedFA's Eq. 1 and its released code: all the same, in every method. FLea's Eq. 1 and SEM's Algorithm 1: their
    rows, as in FedAvg, which FLAIR names without saying otherwise."""
    expected = "uniform" if name.startswith("fedfa-") else "samples"
    assert {run.resolved.training.weighting for run in study_of(name).runs} == {expected}


DOMAINNET = [2629, 3283, 3091, 5000, 6081, 2767]
"""All images of the ten classes, by domain: FedBN's lists of 2 103 and 526 for Clipart, and so on."""
PROSTATE = [261, 157, 468, 384, 411, 175]


def training_sizes(totals: list[int], volume: float, min_size: int) -> list[int]:
    """Training rows of each site: a fifth, rounded up, is held out, and `volume` is of the rest."""
    site = np.repeat(np.arange(len(totals)), [n - math.ceil(n / 5) for n in totals])
    least = min_size if min_size >= 0 else None
    split = make_split("domain", np.zeros_like(site), 1, 0, 0, groups={"domain": site}, volume=volume, min_size=least)
    return [int(size) for size in split.sizes]


@pytest.mark.parametrize(
    ("data", "mini", "totals", "published"),
    [
        ("data/domainnet.parquet", False, DOMAINNET, [672, 840, 791, 1280, 1556, 708]),  # Table 12
        ("data/prostate", True, PROSTATE, [32, 32, 46, 38, 41, 32]),  # a sixth of Table 13, at least 32
        ("data/prostate", False, PROSTATE, [156, 94, 280, 230, 246, 105]),  # Table 13
    ],
)
def test_sites_train_on_as_many_rows_as_in_fedfas_tables(
    data: str, mini: bool, totals: list[int], published: list[int]
) -> None:
    """Within one row: the paper's code cuts where ours rounds."""
    studies = [name for name in LIBRARY.names() if name.startswith("fedfa") and name != "fedfa-table16"]
    whole = "fedfa-table4"
    found = {
        (run.resolved.experiment.volume, run.resolved.experiment.min_size)
        for name in studies
        if "prostate" not in data or mini == (name != whole)
        for run in study_of(name).runs
        if run.at["data"] == data
    }
    assert len(found) == 1
    sizes = training_sizes(totals, *next(iter(found)))
    assert max(abs(ours - theirs) for ours, theirs in zip(sizes, published, strict=True)) <= 1


def test_fractions_of_prostate_slices_are_of_what_the_paper_trains_on() -> None:
    study = study_of("fedfa-table16")
    assert study.published is not None
    for run in study.runs:
        experiment, row = run.resolved.experiment, study.published.row_of(run.at)
        assert row is not None
        part = Fraction(row["train_fraction"])
        sizes = training_sizes(PROSTATE, experiment.volume, experiment.min_size)
        expected = [int(max(float(part) * 0.6 * n, 32)) for n in PROSTATE]
        assert max(abs(ours - theirs) for ours, theirs in zip(sizes, expected, strict=True)) <= 1
