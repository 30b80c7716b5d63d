"""The last model in full (`scores.json`), the chosen metric of a run, and results as tables, against scikit-learn."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, f1_score, roc_auc_score

from fewfed import Dataset, Examples, Experiment, Result, Training, resume, run
from fewfed.data.federation import MOST_GROUPS
from fewfed.engine import storage
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options as DeviceOptions
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import ConfigError, RunError
from fewfed.reproduction.kept import digest_of
from fewfed.runs.experiment import resolve
from fewfed.runs.final_scores import final_scores
from fewfed.runs.prepare import prepare
from fewfed.runs.seals import read_sealed, write_sealed
from fewfed.runs.verify import verify
from run_support import SHORT, SMALL, called, records, small

NAMES = ("benign", "malign", "unknown")
HOSPITALS = ("north", "south", "east", "west")


def patients(sites: int = 4, rows: int = 30, tests: int = 60, **changes: Any) -> Dataset:
    """Three classes, the last of which no test row has; site 0 has no test rows."""
    random = np.random.default_rng(5)
    y, test_y = random.integers(0, 3, sites * rows), random.choice([0, 1], tests, p=[0.8, 0.2])
    where, tested = np.repeat(np.arange(sites), rows), 1 + np.arange(tests) % (sites - 1)

    def inputs(labels: np.ndarray) -> torch.Tensor:
        return torch.tensor(np.eye(4)[labels] + random.normal(0, 0.7, (len(labels), 4)), dtype=torch.float32)

    given = {
        "class_names": NAMES,
        "groups": {"client": where},
        "test_groups": {"client": tested},
        "group_names": {"client": HOSPITALS} if sites == len(HOSPITALS) else {},
    }
    train = Examples(inputs(y), torch.tensor(y))
    return Dataset("patients", train, Examples(inputs(test_y), torch.tensor(test_y)), 3, **{**given, **changes})


SITES = Experiment(split="client", clients=0, cohort=4, rounds=3, network="mlp", executor="sequential")
TRAINING = Training(epochs=2, lr=0.01, batch=10)


def at(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "scores.json").read_text())
    return found


def outputs(folder: Path, dataset: Dataset, experiment: Experiment = SITES) -> torch.Tensor:
    """What the final model of a folder says of the test rows."""
    net = prepare(resolve("fedavg", {"split": experiment.split, "clients": 0, "network": "mlp"}), data=dataset).job.net
    with torch.no_grad():
        return net.apply(storage.load(folder / "model.safetensors")[0], dataset.test.x, train=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return run("fedavg", SITES, TRAINING, data=patients(), out=tmp_path_factory.mktemp("scores") / "run")


def test_the_last_model_is_scored_in_full(finished: Result) -> None:
    folder, data = Path(finished.folder), patients()
    said, y = outputs(folder, data), data.test.y.numpy()
    guess, probability = said.argmax(1).numpy(), said.double().softmax(1).numpy()
    scores, last = at(folder), records(folder)[-1]
    assert scores["test_rows"] == 60
    assert scores["metrics"]["accuracy"] == last["accuracy"]
    assert scores["metrics"]["loss"] == last["loss"]
    assert scores["metrics"]["macro_f1"] == last["macro_f1"] == pytest.approx(f1_score(y, guess, average="macro"))
    recall = [(guess[y == label] == label).mean() for label in (0, 1)]
    assert scores["metrics"]["balanced_accuracy"] == last["balanced_accuracy"] == pytest.approx(np.mean(recall))
    areas = [roc_auc_score(y == label, probability[:, label]) for label in (0, 1)]
    assert scores["metrics"]["auc"] == pytest.approx(np.mean(areas))
    assert "auc" not in last, "it is not the chosen metric"
    assert scores["classes"] == list(NAMES)
    assert np.sum(scores["confusion"]) == 60
    assert scores["confusion"][1][0] == int(((y == 1) & (guess == 0)).sum())
    assert sum(row["rows"] for row in scores["calibration"]) == 60
    assert scores["notes"] == ["AUC is the mean over the other classes: no test row is of unknown"]


def test_one_row_a_class(finished: Result) -> None:
    rows = finished.per_class
    assert [(row["class"], row["rows"]) for row in rows] == [
        (name, int((patients().test.y == label).sum())) for label, name in enumerate(NAMES)
    ]
    assert set(rows[0]) == {"class", "rows", "precision", "recall", "f1", "auc"}
    assert rows[2]["recall"] is None
    assert rows[2]["auc"] is None


def test_one_row_a_site_and_none_is_missing(finished: Result) -> None:
    data = patients()
    guess, y, site = outputs(Path(finished.folder), data).argmax(1).numpy(), data.test.y.numpy(), data.test_groups
    rows = {row["site"]: row for row in finished.per_site}
    assert list(rows) == list(HOSPITALS)
    assert rows["north"]["test_rows"] == 0
    assert rows["north"]["accuracy"] is None
    assert all(set(row) == set(rows["north"]) for row in rows.values())
    for number, name in enumerate(HOSPITALS[1:], 1):
        mine = site["client"] == number
        assert (rows[name]["train_rows"], rows[name]["test_rows"]) == (30, 20)
        assert rows[name]["accuracy"] == pytest.approx((guess[mine] == y[mine]).mean())
        assert rows[name]["macro_f1"] == pytest.approx(f1_score(y[mine], guess[mine], average="macro"))
        if set(guess[mine]) <= set(y[mine]):
            assert rows[name]["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y[mine], guess[mine]))


def test_the_history_is_a_flat_table(finished: Result) -> None:
    history, lines = finished.history, records(Path(finished.folder))
    assert [row["round"] for row in history] == [1, 2, 3]
    assert [row["macro_f1"] for row in history] == [line["macro_f1"] for line in lines]
    assert [row["bytes_up"] for row in history] == [line["bytes"]["up"] for line in lines]
    assert all(row["seconds"] > 0 and row["failed"] == 0 for row in history)
    assert all(not isinstance(value, (list, dict)) for row in history for value in row.values())
    writer = csv.DictWriter(io.StringIO(), fieldnames=list(history[0]))
    writer.writerows(history)


def test_rounds_that_are_not_evaluated_have_blanks(tmp_path: Path) -> None:
    history = run("fedavg", small(rounds=3, evaluate_every=2, validation=0.2), SHORT, out=tmp_path / "run").history
    assert [row["accuracy"] is None for row in history] == [True, False, False]
    assert [row["validation_loss"] is None for row in history] == [True, False, False]
    assert set(history[0]) == set(history[1])


@pytest.mark.parametrize("method", ["fedavg", "local", "fedproto:personal"])
def test_executors_write_the_same_scores(method: str, tmp_path: Path) -> None:
    data = patients(tests=1203)  # Three parts, the last of them small.
    chosen = Experiment(**{**vars(SITES), "metric": "auc", "rounds": 2})
    given = {"sequential": "sequential", "workers": Options(processes=2, stack=1, layout="plain")}
    for name, executor in given.items():
        run(method, chosen, TRAINING, data=data, executor=executor, out=tmp_path / name)
    assert at(tmp_path / "workers") == at(tmp_path / "sequential")
    assert records(tmp_path / "workers") == records(tmp_path / "sequential")


@pytest.mark.parametrize("method", ["fedavg", "local"])
def test_a_device_finds_the_same_scores_to_rounding(method: str) -> None:
    given = {"split": "client", "clients": 0, "network": "mlp"}
    job = prepare(resolve(method, given), data=patients(tests=1203)).job
    server = job.method.server_init(job.setup)
    reference, device = Sequential(job), Device(job, options=DeviceOptions(device="cpu"))
    try:
        ours, theirs = (final_scores(job, executor, server, 20) for executor in (device, reference))
    finally:
        device.close()
    assert ours["metrics"] == pytest.approx(theirs["metrics"], rel=1e-5)
    assert ours["confusion"] == theirs["confusion"]
    assert [row["test_rows"] for row in ours["per_site"]] == [row["test_rows"] for row in theirs["per_site"]]


def test_where_each_client_has_a_model_a_site_is_scored_with_its_own(tmp_path: Path) -> None:
    result = run("local", SITES, TRAINING, data=patients(), out=tmp_path / "run")
    scores, last = result.scores, records(tmp_path / "run")[-1]
    sites = {row["site"]: row["accuracy"] for row in result.per_site}
    assert sites == {"north": None, **last["per_group"]}
    clients = scores["per_client"]
    assert [(row["client"], row["site"], row["train_rows"]) for row in clients] == [
        (number, name, 30) for number, name in enumerate(HOSPITALS)
    ]
    for name in ("accuracy", "macro_f1", "loss", "auc", "accuracy_matched"):
        mean = pytest.approx(np.mean([row[name] for row in clients]))
        assert mean == (last[name] if name == "accuracy_matched" else scores["metrics"][name])
    assert scores["metrics"]["accuracy"] == last["accuracy"]
    assert np.sum(scores["confusion"]) == 4 * 60
    assert [row["rows"] for row in result.per_class] == np.bincount(patients().test.y, minlength=3).tolist()


def test_sites_are_all_scored_in_the_end_however_many(tmp_path: Path) -> None:
    many = MOST_GROUPS + 10
    data = patients(sites=many, rows=2, tests=2 * many)
    experiment = Experiment(**{**vars(SITES), "rounds": 1})
    for method in ("fedavg", "local"):
        result = run(method, experiment, TRAINING, data=data, out=tmp_path / method)
        assert "per_group" not in records(tmp_path / method)[-1]
        rows = result.per_site
        assert [row["site"] for row in rows] == [str(number) for number in range(many)]
        assert [row["accuracy"] is None for row in rows] == [True] + [False] * (many - 1), method


def test_sites_that_are_not_the_clients_are_still_told_apart(tmp_path: Path) -> None:
    experiment = Experiment(**{**vars(SITES), "split": "iid", "clients": 3, "cohort": 3.0, "volume": 0.5})
    result = run("local", experiment, TRAINING, data=patients(), out=tmp_path / "run")
    assert [row["site"] for row in result.per_site] == list(HOSPITALS)
    assert sum(row["train_rows"] for row in result.per_site) == sum(
        row["train_rows"] for row in result.scores["per_client"]
    )
    assert [row["accuracy"] for row in result.per_site] == [None] * 4, "no client is one of them"
    assert run("fedavg", small(), SHORT, out=tmp_path / "digits").per_site == []


def test_an_unseen_site_is_listed_with_noisy_copies_of_its_rows(tmp_path: Path) -> None:
    noisy = {"leave_out": "south", "cohort": 3.0, "noise": 0.1, "noise_test": True}
    result = run("fedavg", Experiment(**{**vars(SITES), **noisy}), TRAINING, data=patients(), out=tmp_path / "run")
    rows = {row["site"]: (row["train_rows"], row["test_rows"]) for row in result.per_site}
    assert rows == {"north": (30, 0), "south": (0, 3 * 20), "east": (30, 0), "west": (30, 0)}


def test_a_chosen_metric_decides_what_is_best(tmp_path: Path) -> None:
    found: dict[str, Result] = {}
    for metric in ("accuracy", "balanced_accuracy", "macro_f1", "auc", "loss", "calibration_error"):
        chosen = small(rounds=6, metric=metric, validation=0.2)
        found[metric] = run("fedavg", chosen, Training(epochs=1, lr=0.05), out=tmp_path / metric)
        lines, result = records(tmp_path / metric), found[metric]
        curve, own = ([line[metric] for line in part] for part in (lines, [line["validation"] for line in lines]))
        lower = metric in ("loss", "calibration_error")
        assert result.metric == metric
        assert result.chosen.best == (min if lower else max)(curve)
        assert (result.chosen.last, result.chosen.last10) == (curve[-1], pytest.approx(np.mean(curve)))
        assert result.chosen.best_validation == curve[int((np.argmin if lower else np.argmax)(own))]
        assert result.accuracy.best == max(line["accuracy"] for line in lines)
    plain = [{k: v for k, v in line.items() if k != "validation"} for line in records(tmp_path / "accuracy")]
    for metric in found:
        lines = records(tmp_path / metric)
        assert [{k: v for k, v in line.items() if k not in ("validation", "auc")} for line in lines] == plain, metric


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        ("balanced_acuracy", "unknown metric 'balanced_acuracy': did you mean 'balanced_accuracy'?"),
        ("dice", "metric 'dice' is not measured in classification: expected one of accuracy, balanced_accuracy, "),
        ("", "unknown metric ''"),
    ],
)
def test_a_metric_that_the_task_does_not_have_is_refused(metric: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        run("fedavg", small(metric=metric), SHORT, out=tmp_path / "run")
    assert str(error.value).startswith(says)
    assert error.value.key == "metric"
    assert not (tmp_path / "run").exists()


def test_an_auc_of_one_class_is_refused_as_a_metric_and_blank_as_a_score(tmp_path: Path) -> None:
    whole = patients()
    alike = whole.test.rows((whole.test.y == 0).nonzero().flatten())
    data = Dataset("alike", whole.train, alike, 3, groups=whole.groups)
    with pytest.raises(ConfigError, match="metric 'auc' needs rows of two classes, and the test rows are all of one"):
        run("fedavg", Experiment(**{**vars(SITES), "metric": "auc"}), data=data, out=tmp_path / "run")
    result = run("fedavg", SITES, TRAINING, data=data, out=tmp_path / "run")
    assert result.scores["metrics"]["auc"] is None
    assert result.scores["notes"] == ["there is no AUC: the test rows are all of one class"]
    assert [(row["site"], row["test_rows"]) for row in result.per_site] == [(str(n), 0) for n in range(4)]


def test_rows_that_a_model_has_no_answer_for_leave_blanks(tmp_path: Path) -> None:
    whole = patients()
    data = Dataset("far", whole.train, Examples(3e38 * whole.test.x.sign(), whole.test.y), 3, groups=whole.groups)
    result = run("fedavg", SITES, TRAINING, data=data, out=tmp_path / "run")
    assert result.scores["metrics"]["loss"] is None
    assert 0 <= result.scores["metrics"]["auc"] <= 1
    text = (tmp_path / "run" / "scores.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text


def test_masks_have_a_table_of_classes_and_sites_too(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (24, 8, 8), generator=generator)
    rows = Examples(y.unsqueeze(1) + torch.randn(24, 1, 8, 8, generator=generator) / 4, y)
    where = np.repeat([0, 1, 2, 3], 6)
    data = Dataset("masks", rows, rows, 2, task="segmentation", groups={"client": where}, test_groups={"client": where})
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1))
    for metric in ("dice", "dice_with_background"):
        chosen = Experiment(**{**vars(SITES), "network": "auto", "metric": metric})
        result = run("fedavg", chosen, TRAINING, data=data, network=network, out=tmp_path / metric)
        last = records(tmp_path / metric)[-1]
        assert result.chosen.last == last[metric] == result.scores["metrics"][metric]
        assert {row["site"]: row["dice"] for row in result.per_site} == pytest.approx(last["per_group"])
        assert [row["dice"] for row in result.per_class] == pytest.approx(last["per_class"])
        assert "confusion" not in result.scores
    with pytest.raises(ConfigError, match="'auc' is not measured in segmentation: expected one of accuracy, dice"):
        run("fedavg", Experiment(**{**vars(SITES), "metric": "auc"}), data=data, network=network, out=tmp_path / "no")


def problems(folder: Path) -> dict[str, str]:
    return {finding.name: finding.problem for finding in verify(folder) if finding.problem}


def test_scores_are_sealed_and_written_again_where_they_are_lost(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run("fedavg", small(), SHORT, out=folder)
    before = at(folder)
    assert problems(folder) == {}
    (folder / "scores.json").write_text((folder / "scores.json").read_text().replace('"rows": 1', '"rows": 2', 1))
    assert "does not fit its digest" in problems(folder)["scores.json"]
    with pytest.raises(RunError, match=r"scores\.json' is damaged"):
        _ = result.per_class
    assert resume(folder) == result
    assert at(folder) == before
    (folder / "scores.json").unlink()
    assert "scores.json' is missing: resume the run" in problems(folder)["result.json"]
    with pytest.raises(RunError, match=r"scores\.json' is missing: resume the run to write it again"):
        _ = result.per_site
    assert resume(folder) == result
    assert at(folder) == before
    write_sealed(OwnFolder(folder) / "scores.json", {**before, "test_rows": 1})
    assert problems(folder) != {}


def test_a_run_from_before_there_were_scores_is_read_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run("fedavg", small(), SHORT, out=folder)
    recorded, _ = read_sealed(OwnFolder(folder) / "result.json")
    del recorded["files"]["scores.json"], recorded["metric"], recorded["chosen"]
    write_sealed(OwnFolder(folder) / "result.json", recorded)
    (folder / "scores.json").unlink()
    assert problems(folder) == {}
    assert resume(folder) == result
    with pytest.raises(RunError, match=r"was made before runs had a scores\.json: remove its result\.json and resume"):
        _ = result.per_site
    (folder / "result.json").unlink()
    assert len(resume(folder).per_class) == 10


def test_a_result_whose_folder_is_gone_says_so(tmp_path: Path) -> None:
    result = run("fedavg", small(rounds=1), SHORT, out=tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "elsewhere")
    with pytest.raises(RunError, match="is missing: expected the folder of this run where it was"):
        _ = result.history
    with pytest.raises(RunError, match="holds no finished run"):
        _ = result.per_site


def test_the_metric_is_part_of_a_configuration_only_where_somebody_sets_it() -> None:
    plain = digest_of(resolve("fedavg", {}))
    assert digest_of(resolve("fedavg", {"metric": "accuracy"})) == plain == "54a1167ec0da6ec8e09b192e8aa5c1ef"
    assert digest_of(resolve("fedavg", {"metric": "auc"})) != plain


def test_the_command_takes_a_metric(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = ("--metric", "balanced_accuracy", "--out", "run")
    code, said, _ = called(capsys, monkeypatch, "run", "fedavg", *SMALL, *chosen)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert code == 0
    assert result["metric"] == "balanced_accuracy"
    assert f"balanced accuracy best {100 * result['chosen']['best']:.2f} %, last " in said
    code, said, _ = called(capsys, monkeypatch, "compare", "fedavg", *SMALL, "--metric", "loss", "--out", "both")
    assert (code, "loss, one seed; lower is better" in said) == (0, True)
    (row,) = csv.DictReader((tmp_path / "both" / "table.csv").open())
    assert (row["metric"], row["best_sd"]) == ("loss", "")
    code, _, wrong = called(capsys, monkeypatch, "run", "fedavg", *SMALL, "--metric", "f1", "--out", "no")
    assert (code, "unknown metric 'f1': expected one of accuracy, auc, balanced_accuracy" in wrong) == (2, True), wrong
