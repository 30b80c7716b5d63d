"""Which numbers can be hidden in a sum, how they are written, and what is refused instead of being cut off."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewfed.deploy.secure.fixed_point import FixedPoint, OutOfRange
from fewfed.deploy.secure.layout import Layout, Limits, NoSum, outline_of
from fewfed.errors import ConfigError
from fewfed.phase import Combine, Role, Upload
from fewfed.tree import Tree

MEAN, SUM = Upload(Combine.MEAN, Role.MODEL), Upload(Combine.SUM, Role.COUNTS)
ROWS, KEPT = Upload(Combine.CONCAT, Role.FEATURES, 1.0), Upload(Combine.KEEP, Role.SCORE)
MODEL: Tree = {"model": {"w": torch.ones(2, 3), "b": torch.ones(3)}}


def layout(arrays: Tree = MODEL, sites: int = 5, **more: object) -> Layout:
    uploads = {"model": MEAN, "sum": SUM, "rows": ROWS, "kept": KEPT}
    limits = more.pop("limits", Limits())
    return Layout.of(uploads, outline_of(arrays), sites, limits, **more)  # type: ignore[arg-type]


@given(st.integers(3, 100), st.floats(1e-6, 2.0**30), st.floats(1e-3, 2.0**20))
def test_the_sum_of_all_sites_fits_whatever_is_declared(sites: int, bound: float, factor: float) -> None:
    try:
        numbers = FixedPoint.fitting(sites, bound, factor, "it")
    except ConfigError:
        assert sites * bound * factor > 2.0**53
        return
    largest = round(bound * factor * 2.0**numbers.bits)
    assert sites * (largest + 1) < 2**63
    if numbers.bits < 52:  # One digit more would not be sure to fit.
        assert sites * bound * factor * 2.0 ** (numbers.bits + 1) > 2.0**61


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=6), st.floats(1e-2, 100))
def test_a_number_is_written_to_half_of_its_last_digit(numbers: list[float], weight: float) -> None:
    code = FixedPoint.fitting(5, 50.0, 100.0, "it")
    room = np.zeros(len(numbers), np.int64)
    code.write(torch.tensor(numbers, dtype=torch.float32), weight, room, "it")
    for whole, number in zip(room.tolist(), numbers, strict=True):
        exact = weight * number * 2.0**code.bits
        assert abs(whole - exact) <= 0.5 + abs(exact) * 2.0**-52


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 16640.0, -16640.0, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_beyond_the_bound_is_refused_with_its_name(value: float, dtype: torch.dtype) -> None:
    arrays: Tree = {"model": {"w": torch.tensor([0.0, value, 1.0], dtype=dtype), "b": torch.zeros(1)}}
    with pytest.raises(OutOfRange, match=r"upload 'model/w' has the number .* expected none beyond 16384; train"):
        layout(arrays).write(1.0, arrays)


def test_the_bound_itself_is_within() -> None:
    arrays: Tree = {"model": {"w": torch.tensor([16384.0, -16384.0])}}
    layout(arrays).write(65536.0, arrays)
    arrays["model"]["w"][0] = float(np.nextafter(np.float32(16384.0), np.float32(np.inf)))
    with pytest.raises(OutOfRange):
        layout(arrays).write(1.0, arrays)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 65537.0])
def test_weights_beyond_the_bound_are_refused(weight: float) -> None:
    with pytest.raises(OutOfRange, match="weight"):
        layout().write(weight, MODEL)


def test_whole_numbers_beyond_what_the_sum_holds_are_refused() -> None:
    arrays: Tree = {"sum": torch.tensor([51], dtype=torch.uint8)}
    layout(arrays).write(1.0, arrays)
    too_large: Tree = {"sum": torch.tensor([52], dtype=torch.uint8)}  # Five of them are more than 255.
    with pytest.raises(OutOfRange, match="beyond 51"):
        layout(arrays).write(1.0, too_large)


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf"), 2.0**45])
def test_bounds_that_cannot_be_are_refused(bound: float) -> None:
    with pytest.raises(ConfigError, match="the bound of upload 'model/"):
        layout(limits=Limits(value=bound))


HIDDEN_NOT = {
    "rows": ({"rows": torch.ones(2, 3)}, "handed on one by one"),
    "a counter": ({"model": {"n": torch.tensor(3)}}, "it is a counter"),
    "a truth": ({"sum": torch.tensor([True])}, "yes or no"),
}


@pytest.mark.parametrize("kind", HIDDEN_NOT)
def test_what_cannot_be_hidden_is_refused_or_named(kind: str) -> None:
    more, why = HIDDEN_NOT[kind]
    arrays: Tree = {**more, "model": {**MODEL["model"], **more.get("model", {})}}
    with pytest.raises(ConfigError, match=f"cannot be hidden in a sum, because .*{why}.*or allow"):
        layout(arrays)
    made = layout(arrays, rest="clear")
    (path,) = made.clear
    assert why in made.clear[path]
    assert {place.path for place in made.places} == {"model/w", "model/b"}
    assert made.in_clear(arrays).keys() == {path}
    # Nothing of it is in the vector.
    assert made.write(1.0, arrays).shape == (10,)


@pytest.mark.parametrize("rest", ["refuse", "clear"])
def test_single_values_by_name_are_always_refused(rest: str) -> None:
    with pytest.raises(ConfigError, match=r"the server reads each site.s value by itself: use a method without it$"):
        layout({**MODEL, "kept": torch.ones(1)}, rest=rest)


def test_all_that_matters_is_in_the_digest() -> None:
    def one(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, name: str = "w", **more: object) -> bytes:
        return layout({"model": {name: torch.ones(shape, dtype=dtype)}}, **more).digest

    others = [
        one((2, 3)),
        one((3, 2)),
        one((6,)),
        one((2, 3), torch.float64),
        one((2, 3), name="v"),
        one((2, 3), sites=6),
        one((2, 3), limits=Limits(value=10.0)),
        one((2, 3), limits=Limits(weight=10.0)),
        layout({"sum": torch.ones(2, 3)}).digest,
        layout({"model": {"w": torch.ones(2, 3)}, "rows": torch.ones(1)}, rest="clear").digest,
    ]
    assert len(set(others)) == len(others)
    assert one((2, 3)) == one((2, 3))
    # The order in which a site has its arrays does not matter.
    turned: Tree = {"model": dict(reversed(MODEL["model"].items()))}
    assert layout(turned).digest == layout().digest
    assert (layout(turned).write(1.0, turned) == layout().write(1.0, MODEL)).all()


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"model": {"w": torch.ones(2, 3)}},
        {"model": {"w": torch.ones(3, 2), "b": torch.ones(3)}},
        {"model": {"w": torch.ones(2, 3).double(), "b": torch.ones(3)}},
        {"model": {"w": torch.ones(2, 3), "b": torch.ones(3), "c": torch.ones(1)}},
    ],
)
def test_other_arrays_than_agreed_are_refused(arrays: Tree) -> None:
    with pytest.raises(OutOfRange, match="upload 'model"):
        layout().write(1.0, arrays)


def test_sums_that_no_honest_sites_can_have_made() -> None:
    made = layout()
    good = sum(made.write(2.0, MODEL) for _ in range(3))
    sites = ("a", "b", "c")
    assert made.read(good, sites).weight == 6.0
    assert made.read(good, sites).values["model/w"].tolist() == [[1.0] * 3] * 2
    for place, told in ((0, "declared bound"), (-1, "weights sum up to")):
        bad = good.copy()
        bad[place] += np.uint64(1 << 62)
        with pytest.raises(NoSum, match=told):
            made.read(bad, sites)
    empty = np.zeros(made.length, np.uint64)
    with pytest.raises(NoSum, match="weights sum up to 0"):
        made.read(empty, sites)


def test_the_error_is_small_where_bounds_are_usual() -> None:
    """A model of usual size, five sites of ten rows: far below what single precision resolves."""
    made = layout()
    sums = made.read(sum(made.write(10.0, MODEL) for _ in range(5)), tuple("abcde"))
    assert 0 < sums.errors["model/w"] < 1e-9
    assert math.isclose(sums.weight, 50.0)
