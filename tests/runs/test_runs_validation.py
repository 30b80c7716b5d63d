"""Whole runs with a validation part: what is trained on, what is written down, and what a user reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fewfed import Experiment, Training, run
from fewfed.data.examples import Dataset, Examples
from fewfed.data.sources import load
from fewfed.data.splits import make_split
from fewfed.errors import ConfigError
from fewfed.runs.experiment import resolve
from fewfed.runs.prepare import prepare
from run_support import SHORT, called, records, small


def test_a_run_reports_the_test_accuracy_of_the_round_that_is_best_on_validation(tmp_path: Path) -> None:
    result = run("fedavg", small(rounds=6, validation=0.25), Training(epochs=1, lr=0.02), out=tmp_path / "run")
    lines = records(tmp_path / "run")
    own = [line["validation"]["accuracy"] for line in lines]
    assert result.accuracy.best_validation == lines[int(np.argmax(own))]["accuracy"]
    assert result.validation is not None
    assert (result.validation.best, result.validation.last) == (max(own), own[-1])
    split = make_split("qua:2", load("digits").train.y.numpy(), 10, clients=6, seed=0)
    held = sum(-(-int(size) // 4) for size in split.sizes)
    manifest = json.loads((tmp_path / "run" / "split.json").read_text())
    assert manifest["validation"]["rows"] == held
    assert manifest["rows"] == int(split.sizes.sum()) - held


def test_held_back_rows_are_of_the_same_client_and_nobody_trains_on_them() -> None:
    job = prepare(resolve("fedavg", {"split": "dir:0.5", "clients": 12, "validation": 0.3, "seed": 2})).job
    whole = prepare(resolve("fedavg", {"split": "dir:0.5", "clients": 12, "seed": 2})).job

    def rows(examples: Examples) -> list[bytes]:
        return sorted(row.numpy().tobytes() for row in examples.x)

    joined = job.federation.union().join(job.federation.validation)
    assert rows(joined) == rows(whole.federation.union())
    first = 0
    for client in range(12):
        size = whole.federation.size(client) - job.federation.size(client)
        mine = job.federation.validation.rows(torch.arange(first, first + size))
        assert rows(job.federation.examples(client).join(mine)) == rows(whole.federation.examples(client))
        first += size


def test_without_it_nothing_is_written_that_was_not_before(tmp_path: Path) -> None:
    result = run("fedavg", small(rounds=2), SHORT, out=tmp_path / "run")
    assert result.validation is None
    assert result.accuracy.best_validation is None
    assert all("validation" not in line for line in records(tmp_path / "run"))
    for name in ("result", "split"):
        assert "validation" not in json.loads((tmp_path / "run" / f"{name}.json").read_text())
    assert set(json.loads((tmp_path / "run" / "result.json").read_text())["accuracy"]) == {"best", "last", "last10"}


def test_clients_of_one_row_have_none_to_spare() -> None:
    labels = torch.arange(8) % 2
    data = Dataset("tiny", Examples(torch.randn(8, 4), labels), Examples(torch.randn(4, 4), labels[:4]), 2)
    alone = resolve("fedavg", {"data": "tiny", "split": "iid", "clients": 8, "validation": 0.2, "network": "mlp"})
    with pytest.raises(
        ConfigError, match=r"validation = 0\.2 leaves no validation rows: the largest client has 1 rows"
    ):
        prepare(alone, data=data)
    pairs = resolve("fedavg", {"data": "tiny", "split": "iid", "clients": 4, "validation": 0.2, "network": "mlp"})
    federation = prepare(pairs, data=data).job.federation
    assert [federation.size(client) for client in range(4)] == [1, 1, 1, 1]
    assert len(federation.validation) == 4


def test_min_size_is_what_a_client_trains_on() -> None:
    given = {"split": "size:0.3", "clients": 20, "min_size": 9, "validation": 0.5, "seed": 1}
    federation = prepare(resolve("fedavg", given)).job.federation
    assert min(federation.size(client) for client in range(20)) == 9
    assert len(federation.validation) > 300


def test_domains_are_validated_by_domain() -> None:
    train, domain = torch.randn(60, 3), np.arange(60) % 3
    labels = torch.arange(60) % 2
    data = Dataset(
        "sites", Examples(train, labels), Examples(train[:6], labels[:6]), 2, groups={"domain": domain},
        group_names={"domain": ("a", "b", "c")}, test_groups={"domain": domain[:6]},
    )  # fmt: skip
    values = {"data": "sites", "split": "domain", "clients": 0, "validation": 0.25, "network": "mlp"}
    federation = prepare(resolve("fedavg", values), data=data).job.federation
    assert {name: int(inside.sum()) for name, inside in federation.validation_groups.items()} == dict.fromkeys("abc", 5)
    unseen = prepare(resolve("fedavg", {**values, "leave_out": "b"}), data=data).job.federation
    assert {name: int(inside.sum()) for name, inside in unseen.validation_groups.items()} == {"a": 5, "c": 5}
    assert set(unseen.test_groups) == {"b"}


def test_the_commands_say_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["--split", "iid", "--clients", "4", "--set", "validation=0.2"]
    code, said, _ = called(capsys, monkeypatch, "split", *common)
    assert (code, " to train on, " in said) == (0, True)
    more = ("--rounds", "2", "--epochs", "1", "--out", str(tmp_path / "run"))
    code, said, _ = called(capsys, monkeypatch, "run", "fedavg", *common, *more)
    assert (code, "best validation " in said) == (0, True)


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_a_fraction_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="validation"):
        prepare(resolve("fedavg", {"validation": value}))
    assert Experiment().validation == 0
