"""Leave-one-client-out: who trains, what is tested, and what is refused."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewfed import Dataset, Examples, Experiment, Training, run
from fewfed.data.leave_out import leave_out
from fewfed.engine import storage
from fewfed.errors import ConfigError
from fewfed.runs.experiment import resolve
from fewfed.runs.naming import default_folder
from fewfed.runs.prepare import prepare
from run_support import called
from support import same

NAMES = ("amazon", "caltech", "dslr")
EXPERIMENT = Experiment(split="domain", clients=0, cohort=2, rounds=2, network="mlp", executor="sequential")
SHORT = Training(epochs=1, batch=8)


def rows(ids: np.ndarray, start: int) -> Examples:
    """Input 0 is the row's number, input 1 its domain."""
    numbers = torch.arange(start, start + len(ids))
    domains = torch.from_numpy(ids)
    return Examples(torch.stack([numbers, domains], 1).float(), numbers % 2)


def dataset(**changes: Any) -> Dataset:
    train, test = np.array([0] * 6 + [1] * 8 + [2] * 4), np.array([0] * 3 + [1] * 2 + [2] * 2)
    given = {
        "groups": {"domain": train},
        "group_names": {"domain": NAMES},
        "test_groups": {"domain": test},
        "note": "made up",
    }
    return Dataset("toy", rows(train, 0), rows(test, 100), 2, **{**given, **changes})


@pytest.mark.parametrize(("wanted", "group"), [("amazon", 0), ("0", 0), ("dslr", 2), ("2", 2)])
def test_the_clients_test_rows_are_tested_and_none_of_its_rows_is_trained_on(wanted: str, group: int) -> None:
    whole = dataset()
    made = leave_out(whole, "domain", wanted)
    theirs = [int(n) for n, domain in whole.test.x if int(domain) == group]
    others = [int(n) for n, domain in whole.train.x if int(domain) != group]
    assert made.test.x[:, 0].tolist() == theirs
    assert made.train.x[:, 0].tolist() == others
    assert made.test.y.tolist() == [n % 2 for n in theirs]
    assert made.groups["domain"].tolist() == [int(domain) for _, domain in made.train.x]
    assert made.note == f"made up; tested on the unseen domain '{NAMES[group]}'"


def test_without_knowing_whose_test_rows_they_are_the_training_rows_are_tested() -> None:
    made = leave_out(dataset(test_groups={}), "domain", "caltech")
    assert made.test.x[:, 0].tolist() == list(range(6, 14))
    assert "its training rows" in made.note


def test_a_client_without_test_rows_is_tested_on_its_training_rows() -> None:
    made = leave_out(dataset(test_groups={"domain": np.array([0] * 3 + [2] * 4)}), "domain", "caltech")
    assert made.test.x[:, 0].tolist() == list(range(6, 14))
    assert made.test_groups["domain"].tolist() == [1] * 8
    assert "its training rows" in made.note


def test_the_papers_fractions_are_those_of_the_test_parts() -> None:
    """FedFA's Table 4 on Office-Caltech, FedAvg, FedProx and FedFA: right answers out of the unseen client's test rows.

    (FedRobust's and FedMix's rows fit no whole number of answers, neither of the test rows nor of all.)
    """
    sizes = {"A": (192, 958), "C": (225, 1123), "D": (32, 157), "W": (59, 295)}

    def fits(percent: float, rows: int) -> bool:  # Printed with one digit; a five at the end was cut or rounded up.
        return any(abs(100 * right / rows - percent) < 0.0501 for right in range(rows + 1))

    published = Path(__file__).parents[2] / "reproduce" / "published" / "fedfa_table4.csv"
    with published.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["algorithm"] in ("FEDAVG", "FEDPROX", "FEDFA")]
    office = [row for row in rows if row["dataset"] == "Office-Caltech10" and row["held_out_client"] in sizes]
    assert len(office) == 3 * 4
    assert all(fits(float(row["metric_pct"]), sizes[row["held_out_client"]][0]) for row in office)
    dslr = [float(row["metric_pct"]) for row in office if row["held_out_client"] == "D"]
    assert not any(fits(percent, sizes["D"][1]) for percent in dslr), "all of DSLR's rows would give other fractions"


def test_a_name_wins_over_a_number_and_groups_without_names_have_their_number() -> None:
    named = dataset(group_names={"domain": ("2", "0", "1")})
    assert set(leave_out(named, "domain", "2").test.x[:, 1].tolist()) == {0}
    unnamed = dataset(group_names={})
    assert set(leave_out(unnamed, "domain", "2").test.x[:, 1].tolist()) == {2}


def test_a_run_trains_the_others_and_reports_the_unseen_one(tmp_path: Path) -> None:
    experiment = replace(EXPERIMENT, leave_out="caltech")
    result = run("fedavg", experiment, SHORT, data=dataset(), out=tmp_path / "run")
    assert result.clients == 2
    assert "unseen domain 'caltech'" in result.note
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["per_group"] == {"caltech": record["accuracy"]}
    assert json.loads((tmp_path / "run" / "split.json").read_text())["rows"] == 6 + 4


def test_training_does_not_see_the_client_that_is_left_out(tmp_path: Path) -> None:
    poisoned = dataset()
    poisoned.train.x[6:14] += 1000
    poisoned.test.x[:] += 1000
    models = []
    for name, data in (("clean", dataset()), ("poisoned", poisoned)):
        run("fedavg", replace(EXPERIMENT, leave_out="caltech"), SHORT, data=data, out=tmp_path / name)
        models.append(storage.load(tmp_path / name / "model.safetensors")[0])
    assert same(*models)


def test_personal_models_are_tried_on_the_unseen_client_and_have_no_group_of_their_own_there(tmp_path: Path) -> None:
    run("local", replace(EXPERIMENT, leave_out="dslr"), SHORT, data=dataset(), out=tmp_path / "run")
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert record["evaluated_clients"] == 2
    assert set(record["per_group"]) == {"dslr"}
    assert "accuracy_own_group" not in record


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"leave_out": "dslr", "split": "iid", "clients": 3},
            "leave_out = 'dslr' needs clients that are natural groups",
        ),
        ({"leave_out": "dslr", "split": "subject"}, "has no subject ids"),
        ({"leave_out": "dlsr"}, "leave_out = 'dlsr': unknown domain 'dlsr': did you mean 'dslr'"),
        ({"leave_out": "3"}, "or a client number from 0 to 2"),
    ],
)
def test_what_cannot_be_left_out_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        run("fedavg", replace(EXPERIMENT, **changes), SHORT, data=dataset(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_only_client_cannot_be_left_out() -> None:
    alone = dataset(groups={"domain": np.zeros(18, np.int64)})
    with pytest.raises(ConfigError, match="leaves nobody to train"):
        leave_out(alone, "domain", "amazon")


def test_every_client_in_turn_from_one_file_of_rows(tmp_path: Path) -> None:
    """Own data with a subject column: the groups of held-out rows are known, and theirs alone count."""
    people = ("anna", "bert", "carl")
    lines = ["a,b,label,subject"]
    lines += [f"{k % 5},{k % 3},{k % 2},{people[k % 3]}" for k in range(60)]
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(lines))
    for name in people:
        values = {"data": str(table), "split": "subject", "clients": 0, "cohort": 2, "leave_out": name}
        prepared = prepare(resolve("fedavg", values))
        whole = prepare(resolve("fedavg", {**values, "leave_out": ""})).job.federation
        assert len(prepared.job.federation.test) == int(whole.test_groups[name].sum()) > 0
        assert len(prepared.split.order) + len(whole.test) < 60
        assert list(prepared.job.federation.test_groups) == [name]


def test_the_folder_of_a_run_says_who_was_left_out() -> None:
    with_one, without = (resolve("fedavg", {"split": "domain", "leave_out": name}) for name in ("dslr", ""))
    assert "without-dslr" in default_folder(with_one).name
    assert "without" not in default_folder(without).name


def test_the_command_takes_it_as_one_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("a,label,domain\n" + "\n".join(f"{k % 7},{k % 2},{('east', 'west')[k % 2]}" for k in range(40)))
    common = ("--data", str(table), "--split", "domain", "--clients", "0", "--set", "leave_out=west")
    options = ("--cohort", "1", "--rounds", "1", "--network", "mlp", "--out", str(tmp_path / "run"), "--json")
    code, out, err = called(capsys, monkeypatch, "run", "fedavg", *common, *options)
    assert code == 0, err
    assert "unseen domain 'west'" in json.loads(out.splitlines()[-1])["note"]
    code, out, _ = called(capsys, monkeypatch, "split", *common, "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["clients"] == 1
