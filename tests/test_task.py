from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, recall_score

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.task import Score
from fewfed.tasks.classification import Classification
from fewfed.tasks.regression import Regression
from support import job_of, linear_network, run


def predictions(rows: int = 60, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    y = torch.randint(0, classes, (rows,), generator=generator)
    return torch.randn(rows, classes, generator=generator) + 1.5 * torch.eye(classes)[y], y


def test_classification_agrees_with_scikit_learn() -> None:
    output, y = predictions()
    score = Classification(4).score(output, y)
    guess, probability = output.argmax(1).numpy(), output.double().softmax(1).numpy()
    assert score.accuracy == pytest.approx(accuracy_score(y, guess))
    assert score.per_class == pytest.approx(recall_score(y, guess, average=None).tolist())
    assert score.mean_loss == pytest.approx(log_loss(y, probability), rel=1e-5)
    assert float(Classification(4).loss(output, y)) == pytest.approx(log_loss(y, probability), rel=1e-5)


def test_scores_of_parts_add_up_to_the_score_of_the_whole() -> None:
    output, y = predictions()
    task = Classification(4)
    whole = task.score(output, y)
    parts = task.score(output[:17], y[:17]) + task.score(output[17:], y[17:])
    assert torch.equal(parts.correct, whole.correct)
    assert torch.equal(parts.total, whole.total)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)


def test_a_class_the_test_rows_lack_has_no_rate() -> None:
    output, y = torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 1])
    score = Classification(3).score(output, y)
    assert score.per_class[:2] == [1.0, 1.0]
    assert math.isnan(score.per_class[2])
    assert score.accuracy == 1.0
    assert score.matched(torch.tensor([1, 1, 5])) == 1.0


def test_matched_is_the_accuracy_on_a_test_set_of_those_proportions() -> None:
    score = Score(torch.tensor([8, 1, 5]), torch.tensor([10, 10, 5]), 0.0)
    assert score.matched(score.total) == pytest.approx(score.accuracy)
    counts = np.array([3, 1, 0])
    assert score.matched(torch.tensor(counts)) == pytest.approx(float(counts @ [0.8, 0.1, 1.0]) / 4)
    assert score.matched(7 * torch.tensor(counts)) == pytest.approx(score.matched(torch.tensor(counts)))


def test_regression_is_half_the_squared_error() -> None:
    output, y = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 0.0, 3.5])
    task = Regression(tolerance=0.5)
    assert float(task.loss(output, y)) == pytest.approx((0 + 4 + 0.25) / 6)
    score = task.score(output, y)
    assert score.accuracy == pytest.approx(2 / 3)
    assert score.mean_loss == pytest.approx((0 + 4 + 0.25) / 6)


def test_a_run_with_real_targets_needs_no_class_counts() -> None:
    x = torch.arange(8.0).reshape(8, 1) / 8
    rows = Examples(x, 2.5 * x.squeeze(1))
    job = job_of(
        "fedavg",
        GeneratedFederation(2, lambda client: rows, rows, 0),
        net=linear_network([[0.0]], dtype=torch.float32),
        task=Regression(),
        training={"optimizer": "sgd", "lr": 0.5, "lr_decay": 0.0, "epochs": 30},
    )
    recorder = run(job, rounds=5, cohort=2)
    assert float(recorder.server["model"]["params"]["head.weight"]) == pytest.approx(2.5, abs=1e-3)
