"""The files of SEM's and FLAIR's tables: every printed number has its runs, and they are run as the sources say."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from fewfed.reproduction.library import Library

FOLDER = Path(__file__).parents[2] / "reproduce"
study_of = cache(Library.at(FOLDER).study)  # The largest take seconds to read.


@pytest.mark.parametrize(
    ("name", "table", "columns"),
    [
        ("sem-table1", "", ("base_acc_pct", "sem_acc_pct")),
        ("sem-table2", "II", ("singleset_acc", "fedavg_acc", "fedavg_sem_acc")),
        ("sem-table3", "III", ("singleset_acc", "fedavg_acc", "fedavg_sem_acc")),
    ],
)
def test_every_number_of_sems_tables_belongs_to_exactly_one_setting(
    name: str, table: str, columns: tuple[str, ...]
) -> None:
    study = study_of(name)
    assert study.published is not None
    settings = {run.setting: run.at for run in study.runs}
    found = [value.mean for at in settings.values() if (value := study.published.value_of(at)) is not None]
    with (FOLDER / "published" / study.published.table).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if not table or row["table"] == table]
    assert sorted(found) == sorted(float(row[column]) for row in rows for column in columns if row[column])


@pytest.mark.parametrize("name", ["sem-table1", "sem-table2", "sem-table3", "sem-fig4", "sem-fig5"])
def test_sems_studies_are_run_as_the_authors_code_does(name: str) -> None:
    for run in study_of(name).runs:
        label, training, values = str(run.at["method"]), run.resolved.training, dict(run.resolved.values)
        assert (training.batch_rule, training.lr_at(0), training.lr_at(999)) == ("partial", 1e-3, 1e-3)
        cohort = run.resolved.experiment.cohort_size(int(run.at["clients"]))
        assert training.batch == (8 * cohort if label == "single:sem" else 8)
        assert values == {"fedprox": {"mu": 0.1}, "sem:released(fedprox)": {"inner.mu": 0.1}}.get(label, {})
        assert label == "sem(scaffold)" or "sem(" not in label


@pytest.mark.parametrize("name", [f"flair-table{number}" for number in range(2, 7)])
def test_flairs_fedproto_shares_no_model(name: str) -> None:
    methods = {str(run.at["method"]): run.resolved.chosen.method for run in study_of(name).runs}
    (label,) = (label for label in methods if label.startswith("fedproto"))
    assert methods[label].personal_model
    published = study_of(name).published
    assert published is None or any(
        published.value_of(run.at) for run in study_of(name).runs if run.at["method"] == label
    )
