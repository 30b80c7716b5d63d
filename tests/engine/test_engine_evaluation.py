"""Scores against scikit-learn's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, recall_score
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.evaluation import Evaluate
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import EXACT
from fewfed.engine.job import Job
from fewfed.engine.loop import run_rounds
from fewfed.errors import RunError
from fewfed.methods.fedavg import FedAvg
from fewfed.task import Score
from fewfed.tasks.classification import Classification
from fewfed.tasks.regression import Regression
from fewfed.tree import Tree
from support import digits, digits_federation, job_of, run, states

TRAINING = {"lr": 0.003, "epochs": 3}


def predictions(job: Job, model: Tree) -> tuple[np.ndarray, np.ndarray]:
    """Predicted classes and class probabilities of the test rows, in one pass."""
    with torch.no_grad():
        logits = job.net.apply(model, job.federation.test.x, train=False)
    return logits.argmax(1).numpy(), logits.double().softmax(1).numpy()


def test_accuracy_per_class_and_loss_are_scikit_learns() -> None:
    job = job_of("fedavg", digits_federation(8, 30), training=TRAINING)
    recorder = run(job, rounds=4, cohort=8, observers=[Evaluate()])
    metrics, truth = recorder.metrics[-1], job.federation.test.y.numpy()
    predicted, probabilities = predictions(job, recorder.server["model"])
    assert 0.2 < metrics["accuracy"] < 1
    assert metrics["accuracy"] == pytest.approx(accuracy_score(truth, predicted), rel=1e-6)
    assert metrics["per_class"] == pytest.approx(list(recall_score(truth, predicted, average=None)))
    assert metrics["loss"] == pytest.approx(log_loss(truth, probabilities), rel=1e-5)


@dataclass
class Models:
    """Keeps each client's own model of the last round."""

    found: list[Tree]

    def after_round(self, view: Any) -> None:
        start = view.job.method.client_init(view.job.setup)
        left = states(view.executor, len(view.job.federation))
        everybody = [left.get(client, start) for client in range(len(view.job.federation))]
        self.found[:] = [view.job.method.predictor(view.server, state) for state in everybody]


def test_personal_models_are_averaged_over_all_clients_and_matched_to_their_own_labels() -> None:
    job = job_of("local", digits_federation(6, [30, 20, 10, 25, 15, 30]), training=TRAINING)
    models = Models([])
    metrics = run(job, rounds=2, cohort=4, observers=[Evaluate(clients=0), models]).metrics[-1]
    truth = job.federation.test.y.numpy()
    predicted = [predictions(job, model)[0] for model in models.found]
    present = np.bincount(truth, minlength=10)
    # A row of class c stands for as many as the client has of that class, shared among the test rows of the class.
    weights = [(job.federation.counts(client).numpy() / present)[truth] for client in range(6)]
    matched = [accuracy_score(truth, p, sample_weight=w) for p, w in zip(predicted, weights, strict=True)]
    recalls = [recall_score(truth, p, average=None) for p in predicted]
    assert metrics["evaluated_clients"] == 6
    assert metrics["accuracy"] == pytest.approx(np.mean([accuracy_score(truth, p) for p in predicted]), rel=1e-6)
    assert metrics["accuracy_matched"] == pytest.approx(np.mean(matched), rel=1e-6)
    assert metrics["per_class"] == pytest.approx(np.mean(recalls, axis=0))
    assert metrics["accuracy_matched"] > metrics["accuracy"] + 0.2, "clients with three classes know those best"


def test_matched_accuracy_is_the_accuracy_on_a_test_set_rebuilt_with_those_labels() -> None:
    truth = np.array([0, 0, 1, 1, 1, 2, 2, 2, 2])
    predicted = np.array([0, 1, 1, 1, 0, 2, 0, 1, 2])
    counts = torch.tensor([5, 0, 2])
    logits = torch.nn.functional.one_hot(torch.tensor(predicted), 3).float()
    score = Classification(3).score(logits, torch.tensor(truth))
    # Twelve copies divide evenly among the 2, 3 and 4 rows of each class.
    copies = np.array([int(counts[c]) * 12 // np.count_nonzero(truth == c) for c in truth])
    assert score.matched(counts) == pytest.approx(
        accuracy_score(np.repeat(truth, copies), np.repeat(predicted, copies))
    )


def test_matched_accuracy_leaves_out_classes_the_test_part_lacks() -> None:
    score = Score(torch.tensor([3, 0, 1]), torch.tensor([4, 0, 4]), loss=0.0)
    assert score.matched(torch.tensor([2, 50, 2])) == pytest.approx((3 / 4 + 1 / 4) / 2)


def test_a_class_without_test_rows_has_no_accuracy() -> None:
    fed = digits_federation(4, 10)
    some = fed.test.y < 7
    made = GeneratedFederation(4, fed.examples, Examples(fed.test.x[some], fed.test.y[some]), classes=10)
    metrics = run(job_of("fedavg", made), rounds=1, observers=[Evaluate()]).metrics[0]
    assert metrics["per_class"][7:] == [None] * 3
    assert all(rate is not None for rate in metrics["per_class"][:7])


def test_a_sample_of_clients_is_scored_where_there_are_many_and_it_is_always_the_same() -> None:
    job = job_of("local", digits_federation(10, 10))
    first, second = (run(job, rounds=1, cohort=3, observers=[Evaluate(clients=4)]).metrics[0] for _ in range(2))
    assert first["evaluated_clients"] == 4
    assert first["accuracy"] == second["accuracy"]


def test_rounds_between_evaluations_have_no_scores_but_the_last_always_has() -> None:
    metrics = run(job_of("fedavg"), rounds=5, observers=[Evaluate(every=2)]).metrics
    assert ["accuracy" in one for one in metrics] == [False, True, False, True, True]


def test_scoring_does_not_change_the_run() -> None:
    job = job_of("fedavg", training=TRAINING)
    servers = [run_rounds(job, Sequential(job), observers, rounds=3, cohort=3) for observers in ([], [Evaluate()])]
    assert all(
        torch.equal(servers[0]["model"][p][k], v)
        for p in ("params", "buffers")
        for k, v in servers[1]["model"][p].items()
    )


def test_regression_scores_are_half_squared_errors_and_hits_within_the_tolerance() -> None:
    output, y = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.5, 2.0, 2.0])
    score = Regression(tolerance=0.5).score(output, y)
    assert score.accuracy == pytest.approx(2 / 3)
    assert score.mean_loss == pytest.approx(((0.5**2) + 0 + 2**2) / 2 / 3)


@dataclass(frozen=True)
class Presents(FedAvg):
    """Test inputs become what `made` makes of them."""

    made: Any = None

    def presented(self, model: Tree, x: Tensor) -> Tensor:
        found: Tensor = self.made(x)
        return found


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda x: 1 // 0, "ZeroDivisionError"),
        (lambda x: None, "its result is a NoneType: expected torch.float32"),
        (lambda x: x[:, :, :4], "expected torch.float32 .*, as the inputs are"),
        (lambda x: x.double(), "its result is torch.float64"),
    ],
)
def test_what_a_method_makes_of_test_inputs_is_looked_at(made: Any, says: str) -> None:
    with pytest.raises(RunError, match=f"method 'fedavg', presented: .*{says}"):
        run(job_of(Presents(made)), rounds=1, observers=[Evaluate()])


def validated(method: str) -> Job:
    """Six clients, and validation rows that are neither trained nor tested on."""
    whole = digits_federation(6, 20)
    train, _ = digits()
    federation = GeneratedFederation(6, whole.examples, whole.test, 10, validation=train.rows(torch.arange(700, 1400)))
    return job_of(method, federation, training=TRAINING)


def test_validation_rows_are_scored_whenever_test_rows_are() -> None:
    job = validated("fedavg")
    recorder = run(job, rounds=5, cohort=6, observers=[Evaluate(every=2)])
    assert [("validation" in line, "accuracy" in line) for line in recorder.metrics] == [
        (False, False), (True, True), (False, False), (True, True), (True, True),
    ]  # fmt: skip
    held, found = job.federation.validation, recorder.metrics[-1]["validation"]
    with torch.no_grad():
        logits = job.net.apply(recorder.server["model"], held.x, train=False)
    assert found["accuracy"] == pytest.approx(accuracy_score(held.y, logits.argmax(1)), rel=1e-6)
    assert found["loss"] == pytest.approx(log_loss(held.y, logits.double().softmax(1)), rel=1e-5)
    assert found["accuracy"] != recorder.metrics[-1]["accuracy"]


def test_personal_models_are_scored_on_everybodys_validation_rows() -> None:
    job = validated("local")
    models = Models([])
    found = run(job, rounds=2, cohort=4, observers=[Evaluate(clients=0), models]).metrics[-1]["validation"]
    held = job.federation.validation
    with torch.no_grad():
        right = [job.net.apply(model, held.x, train=False).argmax(1) for model in models.found]
    assert found["accuracy"] == pytest.approx(np.mean([accuracy_score(held.y, p) for p in right]), rel=1e-6)
    assert found["evaluated_clients"] == 6


@pytest.mark.parametrize("executor", ["workers", "device"])
def test_every_executor_scores_validation_rows_alike(executor: str) -> None:
    job = validated("fedavg")
    models = [job.net.model(), run(job).server["model"]]
    other = Workers(job, options=EXACT) if executor == "workers" else Device(job, options=Options(device="cpu"))
    try:
        for ours, theirs in zip(other.evaluate(models, "validation"), Sequential(job).evaluate(models, "validation"),
                                strict=True):  # fmt: skip
            assert int(theirs.total.sum()) == 700
            assert torch.equal(ours.correct, theirs.correct)
            assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)
    finally:
        other.close()
