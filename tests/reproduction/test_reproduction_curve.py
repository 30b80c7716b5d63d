"""Points of a published curve."""

from __future__ import annotations

import numpy as np
import pytest

from fewfed.reproduction.curve import CurvePoint, check_curve

CURVE = [0.1, 0.5, 0.3, 0.4, 0.2]


@pytest.mark.parametrize(
    ("quantity", "round", "expected"),
    [
        ("accuracy", 3, 30.0),
        ("best", 1, 10.0),
        ("best", 5, 50.0),
        ("mean", 3, 30.0),
        ("sd", 3, 100 * float(np.std(CURVE[-3:]))),
        ("accuracy", 6, None),
        ("mean", 6, None),
    ],
)
def test_quantities(quantity: str, round: int, expected: float | None) -> None:
    found = CurvePoint(quantity, round, 0.0, 1.0).measured(CURVE)  # type: ignore[arg-type]
    assert found == (None if expected is None else pytest.approx(expected))


def test_inside_is_about_the_mean_over_seeds() -> None:
    point = CurvePoint("accuracy", 1, 30.0, 5.0)
    (check,) = check_curve([point], [[0.1], [0.5]])
    assert check.measured == pytest.approx(30)
    assert check.inside is True
    (check,) = check_curve([point], [[0.1], [0.2]])
    assert check.inside is False
    (check,) = check_curve([point], [[]])
    assert check.inside is None
