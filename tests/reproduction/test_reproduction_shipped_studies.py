"""The files of this repository: they can be read, and every number of the papers' tables has its runs."""

from __future__ import annotations

import csv
import dataclasses
import math
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fewfed.data.examples import Dataset, Examples
from fewfed.data.variation import Variation
from fewfed.methods.flea import FLea
from fewfed.reproduction.library import Library
from fewfed.runs.experiment import Experiment
from fewfed.runs.prepare import parts_of

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
        ("flea-iclr-table9", "flea_iclr_table9.csv", {}),
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


def part_sizes(totals: list[int], experiment: Experiment) -> tuple[list[int], list[int]]:
    """Training and validation rows of each site: a fifth, rounded up, is tested on, and `volume` is of the rest."""
    site = np.repeat(np.arange(len(totals)), [n - math.ceil(n / 5) for n in totals])
    rows = Examples(torch.zeros(len(site), 1), torch.zeros(len(site), dtype=torch.long))
    split, held_back = parts_of(Dataset("sites", rows, rows, 1, groups={"domain": site}), experiment)
    assert held_back is not None
    return split.sizes.tolist(), held_back.sizes.tolist()


def near(ours: list[int], theirs: list[int]) -> bool:
    """Within one row: the paper's code cuts where ours rounds."""
    return max(abs(mine - printed) for mine, printed in zip(ours, theirs, strict=True)) <= 1


OFFICE = [958, 1123, 157, 295]
DOMAINNET_VALIDATION = [420, 525, 494, 800, 972, 442]
PROSTATE_VALIDATION = [52, 31, 93, 76, 82, 35]


@pytest.mark.parametrize(
    ("data", "mini", "totals", "trained", "validated"),
    [
        ("office", False, OFFICE, [459, 538, 75, 141], [307, 360, 50, 95]),  # Table 11
        ("data/domainnet.parquet", False, DOMAINNET, [672, 840, 791, 1280, 1556, 708], DOMAINNET_VALIDATION),  # 12
        ("data/prostate", True, PROSTATE, [32, 32, 46, 38, 41, 32], None),  # a sixth of Table 13, at least 32
        ("data/prostate", False, PROSTATE, [156, 94, 280, 230, 246, 105], PROSTATE_VALIDATION),  # Table 13
    ],
)
def test_sites_train_and_validate_on_as_many_rows_as_in_fedfas_tables(
    data: str, mini: bool, totals: list[int], trained: list[int], validated: list[int] | None
) -> None:
    studies = [name for name in LIBRARY.names() if name.startswith("fedfa") and name != "fedfa-table16"]
    whole = "fedfa-table4"
    found = {
        dataclasses.replace(run.resolved.experiment, leave_out="", seed=0, cohort=1.0)
        for name in studies
        if "prostate" not in data or mini == (name != whole)
        for run in study_of(name).runs
        if run.at["data"] == data
    }
    assert len(found) == 1
    ours, held_back = part_sizes(totals, next(iter(found)))
    assert near(ours, trained)
    assert validated is None or near(held_back, validated)


def test_fractions_of_prostate_slices_are_of_what_the_paper_trains_on() -> None:
    study = study_of("fedfa-table16")
    assert study.published is not None
    for run in study.runs:
        experiment, row = run.resolved.experiment, study.published.row_of(run.at)
        assert row is not None
        part = Fraction(row["train_fraction"])
        ours, held_back = part_sizes(PROSTATE, experiment)
        assert near(ours, [int(max(float(part) * 0.6 * n, 32)) for n in PROSTATE])
        large = [k for k, n in enumerate(PROSTATE) if float(part) * 0.6 * n >= 32]  # Else the floor takes from it.
        assert near([held_back[k] for k in large], [PROSTATE_VALIDATION[k] for k in large])


@pytest.mark.parametrize("name", LIBRARY.names())
def test_only_fedfas_domain_tables_are_selected_by_validation(name: str) -> None:
    """Its released code marks the round of the best mean validation accuracy; FLea, SEM and FLAIR print the best round
    on the test part or do not say, and its own Table 3 has no validation rows. A search of our own looks at nothing
    else."""
    study = study_of(name)
    selects = (name.startswith("fedfa") and name != "fedfa-table3") or name == "ours-search"
    assert (study.metric == ("validation.accuracy",)) == (name == "ours-search")
    if study.published is not None:
        assert (study.published.compare == "best_validation") == selects
    assert all((run.resolved.experiment.validation > 0) == selects for run in study.runs)


@pytest.mark.parametrize("name", [name for name in LIBRARY.names() if name.startswith("fedfa")])
def test_fedfas_pictures_are_varied_as_the_paper_says(name: str) -> None:
    """Appendix E.2: flips and rotations by up to 30 degrees on Office and DomainNet; E.3: nothing on prostate slices.
    CIFAR-10: the released code's crop with a padding of 4 and flip."""
    expected = {
        "office": Variation("horizontal", 30.0),
        "data/domainnet.parquet": Variation("horizontal", 30.0),
        "cifar10": Variation("horizontal", crop=4),
    }
    for run in study_of(name).runs:
        assert run.resolved.options.variation == expected.get(str(run.at["data"]), Variation())
        assert run.resolved.options.augment == "none"


def test_flairs_noise_is_drawn_as_niid_bench_does() -> None:
    flair = [name for name in LIBRARY.names() if name.startswith("flair")]
    noisy = [run.resolved.experiment for name in flair for run in study_of(name).runs if run.at.get("noise")]
    assert noisy
    assert all(each.noise_fresh and each.noise_test for each in noisy)


def test_our_own_method_is_compared_on_twelve_settings_with_everything_averaged_too() -> None:
    names = ("ours-har", "ours-urbansound", "ours-cifar10", "ours-small")
    runs = [run for name in names for run in study_of(name).runs]
    settings = {(run.at["data"], run.at["split"], run.at["clients"]) for run in runs}
    assert len(settings) == 12
    plain = {"fedavg", "fedmix", "fedntd", "fedlc", "flea", "feddata"}
    expected = {*plain, *(f"averaged({name})" for name in plain), "ccvr", "ccvr(averaged(fedavg))", "potluck"}
    for setting in settings:
        assert {
            run.at["method"] for run in runs if (run.at["data"], run.at["split"], run.at["clients"]) == setting
        } == (expected)
    ablation = {run.at["method"] for run in study_of("ours-ablation").runs}
    assert len(ablation) == 13
