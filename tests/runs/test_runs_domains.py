"""Domain clients: Office-Caltech-10 as folders, accuracy by domain, and each client's own model on its own domain."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score

from fewfed import Dataset, Examples, Experiment, Training
from fewfed import run as run_experiment
from fewfed.data.federation import MOST_GROUPS, SplitFederation
from fewfed.data.readers.office import DOMAINS
from fewfed.data.readers.options import DataOptions
from fewfed.data.sources import load
from fewfed.data.splits import make_split
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import EXACT
from fewfed.errors import DataError
from run_support import called
from support import digits, job_of, run, states

CLASSES = ("backpack", "bike", "mug")


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rng = np.random.default_rng(0)
    for number, domain in enumerate(DOMAINS):
        for label in CLASSES:
            folder = tmp_path / "office_caltech_10" / domain / label
            folder.mkdir(parents=True)
            for k in range(5 + number):
                Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(folder / f"{k}.png")
    monkeypatch.setenv("FEWFED_DATA", str(tmp_path))
    return tmp_path


def digit_domains(noise: tuple[float, ...] = (0.0, 0.3, 0.6)) -> Dataset:
    """Digits seen by three cameras: each is noisier than the one before."""
    train, test = digits()
    generator = torch.Generator().manual_seed(0)
    parts: list[list[Any]] = [[], []]
    for number, level in enumerate(noise):
        for part, rows, (start, count) in ((0, train, (90 * number, 90)), (1, test, (60 * number, 40 + 20 * number))):
            x, y = rows.x[start : start + count], rows.y[start : start + count]
            parts[part].append((x + level * torch.randn(x.shape, generator=generator), y, np.full(count, number)))
    joined = [
        (torch.cat([p[0] for p in part]), torch.cat([p[1] for p in part]), np.concatenate([p[2] for p in part]))
        for part in parts
    ]
    return Dataset(
        "cameras",
        Examples(joined[0][0], joined[0][1]),
        Examples(joined[1][0], joined[1][1]),
        10,
        groups={"domain": joined[0][2]},
        group_names={"domain": ("clear", "grainy", "dark")},
        test_groups={"domain": joined[1][2]},
    )


def federation(dataset: Dataset, rule: str = "domain", clients: int = 0) -> SplitFederation:
    split = make_split(rule, dataset.split_labels, dataset.classes, clients, 0, groups=dataset.groups)
    return SplitFederation(dataset, split)


def test_office_rows_of_both_parts_know_their_domain(office: Path) -> None:
    data = load("office", options=DataOptions(image_size=16))
    sizes = [3 * (5 + number) for number in range(4)]
    counted = np.bincount(data.groups["domain"]) + np.bincount(data.test_groups["domain"])
    assert counted.tolist() == sizes
    assert len(data.test_groups["domain"]) == len(data.test)


def test_a_run_on_office_has_a_client_and_an_accuracy_for_every_domain(
    office: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "run fedavg --data office --split domain --clients 0 --cohort 4 --rounds 1 --epochs 1 --network small-cnn"
    options = ("--set", "image_size=16", "--out", str(office / "run"), "--json")
    code, out, err = called(capsys, monkeypatch, *asked.split(), *options)
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["clients"] == 4
    record = json.loads((office / "run" / "metrics.jsonl").read_text())
    assert tuple(record["per_group"]) == DOMAINS
    sizes = np.bincount(load("office", options=DataOptions(image_size=16)).test_groups["domain"])
    weighted = np.average(list(record["per_group"].values()), weights=sizes)
    assert record["accuracy"] == pytest.approx(weighted)


def test_office_leaves_one_domain_out(office: Path) -> None:
    experiment = Experiment(
        data="office", split="domain", clients=0, cohort=3, rounds=1, network="small-cnn", leave_out="webcam"
    )
    small = DataOptions(image_size=16)
    result = run_experiment("fedavg", experiment, Training(epochs=1), options=small, out=office / "run")
    assert result.clients == 3
    assert set(json.loads((office / "run" / "metrics.jsonl").read_text())["per_group"]) == {"webcam"}


def test_accuracy_by_group_is_scikit_learns() -> None:
    dataset = digit_domains()
    job = job_of("fedavg", federation(dataset), training={"lr": 0.005, "epochs": 3})
    recorder = run(job, rounds=2, observers=[Evaluate()])
    with torch.no_grad():
        predicted = job.net.apply(recorder.server["model"], dataset.test.x, train=False).argmax(1).numpy()
    ids = dataset.test_groups["domain"]
    expected = {
        name: accuracy_score(dataset.test.y.numpy()[ids == number], predicted[ids == number])
        for number, name in enumerate(("clear", "grainy", "dark"))
    }
    assert recorder.metrics[-1]["per_group"] == pytest.approx(expected)
    assert recorder.metrics[-1]["accuracy_groups"] == pytest.approx(np.mean(list(expected.values())))


@pytest.mark.parametrize("spec", ["fedavg", "fedbn"])
def test_workers_report_the_same_groups(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Several parts, with groups that start and end inside them.
    monkeypatch.setattr("fewfed.engine.scoring.EVALUATION_ROWS", 33)
    job = job_of(spec, federation(digit_domains()))
    alone = run(job, rounds=2, observers=[Evaluate()]).metrics
    executor = Workers(job, options=dataclasses.replace(EXACT, processes=2))
    try:
        together = run(job, rounds=2, observers=[Evaluate()], executor=executor).metrics
    finally:
        executor.close()
    for name in ("accuracy", "loss", "per_class", "per_group"):
        assert [one[name] for one in alone] == [one[name] for one in together]


def test_a_personal_model_is_scored_on_its_own_domain() -> None:
    dataset = digit_domains()
    job = job_of("fedbn", federation(dataset), training={"lr": 0.005, "epochs": 3})
    recorder = run(job, rounds=3, observers=[Evaluate()])
    remembered, ids = states(recorder.views[-1].executor, 3), dataset.test_groups["domain"]
    expected = {}
    for client, name in enumerate(("clear", "grainy", "dark")):
        model = job.method.predictor(recorder.server, remembered[client])
        mine = torch.from_numpy(np.flatnonzero(ids == client))
        with torch.no_grad():
            predicted = job.net.apply(model, dataset.test.x[mine], train=False).argmax(1)
        expected[name] = accuracy_score(dataset.test.y[mine], predicted)
    metrics = recorder.metrics[-1]
    assert metrics["per_group"] == pytest.approx(expected)
    assert metrics["accuracy_own_group"] == pytest.approx(np.mean(list(expected.values())))


def test_other_splits_report_the_groups_too_but_no_client_owns_one() -> None:
    made = federation(digit_domains(), "iid", 5)
    assert set(made.test_groups) == {"clear", "grainy", "dark"}
    assert made.client_groups == ()
    metrics = run(job_of("local", made), rounds=1, observers=[Evaluate()]).metrics[0]
    assert set(metrics["per_group"]) == {"clear", "grainy", "dark"}
    assert "accuracy_own_group" not in metrics


def test_groups_cover_the_test_rows_once() -> None:
    groups = federation(digit_domains()).test_groups
    assert torch.equal(sum(mask.long() for mask in groups.values()), torch.ones(180, dtype=torch.long))


def test_hundreds_of_groups_are_not_scored_one_by_one() -> None:
    dataset = digit_domains()
    many = np.arange(len(dataset.test)) % (MOST_GROUPS + 1)
    fields = {"groups": {"client": np.arange(len(dataset.train)) % 60}, "test_groups": {"client": many}}
    made = federation(Dataset("many", dataset.train, dataset.test, 10, **fields), "client")
    assert made.test_groups == {}
    assert "per_group" not in run(job_of("fedavg", made), rounds=1, observers=[Evaluate()]).metrics[0]


def test_as_many_test_groups_as_test_rows_are_expected() -> None:
    dataset = digit_domains()
    broken = Dataset("odd", dataset.train, dataset.test, 10, test_groups={"domain": np.zeros(3, np.int64)})
    with pytest.raises(DataError, match="3 domain ids for 180 rows; expected one a row"):
        run_experiment("fedavg", Experiment(split="iid", clients=2), data=broken)
