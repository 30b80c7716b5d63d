"""The Davies-Bouldin score against the specification and scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import davies_bouldin_score

from fewfed.diagnostics.davies_bouldin import davies_bouldin


def test_agrees_with_the_specification(flea_values: dict[str, Any]) -> None:
    case = flea_values["davies_bouldin"]
    found = davies_bouldin(torch.tensor(case["points"], dtype=torch.float32), torch.tensor(case["labels"]))
    assert found == pytest.approx(0.2557789191, abs=1e-9)
    assert found == pytest.approx(case["score"])


@given(st.integers(0, 10_000), st.integers(2, 5), st.integers(1, 20))
def test_agrees_with_scikit_learn(seed: int, classes: int, width: int) -> None:
    random = np.random.default_rng(seed)
    points = random.normal(size=(40, width)) * random.uniform(0.1, 10)
    labels = np.concatenate([np.arange(classes), random.integers(classes, size=40 - classes)])
    expected = davies_bouldin_score(points, labels)
    assert davies_bouldin(torch.tensor(points), torch.tensor(labels)) == pytest.approx(expected, rel=1e-9)


def test_does_not_depend_on_scale_or_place_or_class_numbers() -> None:
    points = torch.randn(30, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    labels = torch.arange(30) % 3
    score = davies_bouldin(points, labels)
    assert davies_bouldin(100 * points + 5, labels) == pytest.approx(score)
    assert davies_bouldin(points, 7 - labels) == pytest.approx(score)


def test_maps_are_flattened_first() -> None:
    points = torch.randn(12, 2, 3, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(12) % 3
    assert davies_bouldin(points, labels) == davies_bouldin(points.flatten(1), labels)


def test_one_class_has_no_score() -> None:
    assert davies_bouldin(torch.randn(5, 2), torch.zeros(5, dtype=torch.long)) is None


def test_classes_with_one_centre_cannot_be_told_apart() -> None:
    points = torch.tensor([[-1.0], [1.0], [-2.0], [2.0]])
    assert davies_bouldin(points, torch.tensor([0, 0, 1, 1])) == math.inf
