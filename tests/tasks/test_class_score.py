"""Metrics of a classification against scikit-learn, on random and on odd rows; sums that do not depend on the parts."""

from __future__ import annotations

import json
import math
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    balanced_accuracy_score,
    confusion_matrix,
    f1_score,
    precision_score,
    recall_score,
    roc_auc_score,
)
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewfed.tasks import auc
from fewfed.tasks.class_score import BINS, MOST_CONFUSED, ClassScore
from fewfed.tasks.classification import Classification

Rows = tuple[int, Tensor, Tensor]


def made(classes: int, rows: int, seed: int) -> Rows:
    """Outputs and labels. Few distinct outputs, so that many tie; with few rows, classes that none has."""
    generator = torch.Generator().manual_seed(seed)
    some = torch.tensor([-3.0, -0.5, 0.0, 0.25, 1.0, 8.0])
    output = some[torch.randint(0, len(some), (rows, classes), generator=generator)]
    return classes, output, torch.randint(0, classes, (rows,), generator=generator)


def answers(least_classes: int = 1) -> st.SearchStrategy[Rows]:
    return st.builds(made, st.integers(least_classes, 6), st.integers(1, 40), st.integers(0, 2**32))


def score_of(rows: Rows) -> ClassScore:
    classes, output, y = rows
    found = Classification(classes).score(output, y)
    assert isinstance(found, ClassScore)
    return found


@settings(deadline=None, max_examples=40)
@given(answers())
def test_balanced_accuracy_and_macro_f1_are_scikit_learns(rows: Rows) -> None:
    score, y, guess = score_of(rows), rows[2].numpy(), rows[1].argmax(1).numpy()
    present = np.unique(y)
    # Written out: scikit-learn's own function warns where a class is predicted that no row has.
    assert score.balanced_accuracy == pytest.approx(recall_score(y, guess, labels=present, average="macro"))
    assert score.macro_f1 == pytest.approx(f1_score(y, guess, average="macro"))
    if set(guess) <= set(y) and len(present) > 1:
        assert score.balanced_accuracy == pytest.approx(balanced_accuracy_score(y, guess))


@settings(deadline=None, max_examples=40)
@given(answers())
def test_the_table_of_classes_is_scikit_learns_with_blanks_for_what_is_undefined(rows: Rows) -> None:
    classes, output, y = rows
    truth, guess = y.numpy(), output.argmax(1).numpy()
    named: dict[str, Any] = {"labels": list(range(classes)), "average": None, "zero_division": np.nan}
    expected = {
        "precision": precision_score(truth, guess, **named),
        "recall": recall_score(truth, guess, **named),
        "f1": f1_score(truth, guess, **named),
    }
    for label, row in enumerate(score_of(rows).each_class()):
        assert row["rows"] == int((y == label).sum())
        for name, values in expected.items():
            blank = math.isnan(values[label])
            assert row[name] is None if blank else row[name] == pytest.approx(values[label]), (name, label)


@settings(deadline=None, max_examples=40)
@given(answers(least_classes=2))
def test_the_confusion_matrix_is_scikit_learns(rows: Rows) -> None:
    classes, output, y = rows
    found = ClassScore.of_all_rows(output, y)["confusion"]
    assert found == confusion_matrix(y, output.argmax(1), labels=range(classes)).tolist()


@settings(deadline=None, max_examples=40)
@given(answers(least_classes=2))
def test_the_auc_is_scikit_learns_of_each_class_against_the_others(rows: Rows) -> None:
    classes, output, y = rows
    probability = output.double().softmax(1).numpy()
    each = auc.areas(output, y)
    for label, found in enumerate(each):
        mine = (y == label).numpy()
        if mine.all() or not mine.any():
            assert found is None
        else:
            assert found == pytest.approx(roc_auc_score(mine, probability[:, label]))
    known = [one for one in each if one is not None]
    overall = ClassScore.of_all_rows(output, y)["auc"]
    if not known:
        assert overall is None
    elif classes == 2:
        assert overall == pytest.approx(roc_auc_score(y, probability[:, 1]))
    else:
        assert overall == pytest.approx(np.mean(known))
        if len(known) == classes:
            assert overall == pytest.approx(roc_auc_score(y, probability, multi_class="ovr"))


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=30))
def test_the_area_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, bool]]) -> None:
    values, positive = torch.tensor([float(v) for v, _ in rows]), torch.tensor([p for _, p in rows])
    pairs = [(a > b) + (a == b) / 2 for a, hit in rows if hit for b, miss in rows if not miss]
    found = auc.area(values, positive)
    assert found == (pytest.approx(np.mean(pairs)) if pairs else None)


def test_a_constant_model_has_the_auc_of_chance_and_one_that_diverged_too() -> None:
    y = torch.tensor([0, 1, 1, 2])
    for value in (0.0, math.nan):
        assert ClassScore.of_all_rows(torch.full((4, 3), value), y)["auc"] == 0.5


def test_certain_answers_are_told_apart_where_single_precision_would_call_them_equal() -> None:
    output = torch.tensor([[0.0, 20.0], [0.0, 25.0]])
    assert len(set(output.softmax(1)[:, 1].tolist())) == 1
    assert ClassScore.of_all_rows(output, torch.tensor([0, 1]))["auc"] == 1.0


@settings(deadline=None, max_examples=40)
@given(answers(least_classes=2))
def test_the_calibration_error_is_that_of_its_definition(rows: Rows) -> None:
    _, output, y = rows
    sure, guess = output.softmax(1).max(1)
    sure, right = sure.double().numpy(), (guess == y).numpy()
    expected, edges = 0.0, np.linspace(0, 1, BINS + 1)
    for low, high in pairwise(edges):
        inside = (sure > low + 1e-7) & (sure <= high + 1e-7)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - sure[inside].mean())
    score = score_of(rows)
    assert score.calibration_error == pytest.approx(expected, abs=1e-5)
    table = score.tables()["calibration"]
    assert sum(row["rows"] for row in table) == len(y)
    for row in table:
        assert row["probability"] is None or row["above"] - 1e-6 < row["probability"] <= row["up_to"] + 1e-6


def test_probabilities_of_0_and_1_and_none_at_all_have_a_bin() -> None:
    certain = Classification(2).score(torch.tensor([[200.0, 0.0]]), torch.tensor([0]))
    assert certain.metrics()["calibration_error"] == 0
    broken = Classification(2).score(torch.full((3, 2), math.nan), torch.tensor([0, 1, 1]))
    assert 0 <= broken.metrics()["calibration_error"] <= 1
    assert math.isnan(broken.mean_loss)


def same(one: ClassScore, two: ClassScore) -> bool:
    sums = ("correct", "total", "predicted", "bins")
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in sums)


@settings(deadline=None, max_examples=40)
@given(answers(), st.randoms(use_true_random=False))
def test_scores_add_up_exactly_however_the_rows_are_parted(rows: Rows, random: Any) -> None:
    classes, output, y = rows
    part_of = torch.tensor([random.randrange(4) for _ in y])
    parts = [score_of((classes, output[part_of == n], y[part_of == n])) for n in range(4) if bool((part_of == n).any())]
    random.shuffle(parts)
    whole, total = score_of(rows), sum(parts[1:], start=parts[0])
    assert same(total, whole)
    assert total.loss == pytest.approx(whole.loss, rel=1e-5)
    assert {**total.overall(), "loss": 0} == {**whole.overall(), "loss": 0}


@settings(deadline=None, max_examples=40)
@given(answers())
def test_a_score_is_the_same_after_its_way_through_json(rows: Rows) -> None:
    one = score_of(rows)
    grouped = ClassScore(one.correct, one.total, one.loss, {"a": one}, predicted=one.predicted, bins=one.bins)
    again = ClassScore.from_json(json.loads(json.dumps(grouped.as_json())))
    assert same(again, grouped)
    assert same(again.groups["a"], one)
    assert again.metrics() == grouped.metrics()
    for entry in fields(again):
        value = getattr(again, entry.name)
        assert not isinstance(value, Tensor) or value.dtype == torch.long


@settings(deadline=None, max_examples=40)
@given(answers())
def test_accuracy_loss_and_per_class_have_the_bits_they_had_when_nothing_else_was_counted(rows: Rows) -> None:
    classes, output, y = rows
    score = score_of(rows)
    right = (output.argmax(1) == y).long()
    assert torch.equal(score.correct, torch.zeros(classes, dtype=torch.long).scatter_add_(0, y, right))
    assert torch.equal(score.total, torch.bincount(y, minlength=classes))
    assert score.loss == float(cross_entropy(output, y, reduction="sum").double())


def test_many_classes_have_no_confusion_matrix() -> None:
    classes = MOST_CONFUSED + 1
    found = ClassScore.of_all_rows(torch.eye(classes), torch.arange(classes))
    assert found["confusion"] is None
    assert found["auc"] == 1.0
