"""The sum under masks is the plain sum, within the stated bound, whoever drops out; of too few there is none."""

from __future__ import annotations

import time
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secure_play import KEYS, Play, Value
from torch import Tensor

from fewfed import tree
from fewfed.deploy.secure.layout import Limits, NoSum
from fewfed.deploy.secure.messages import Kind
from fewfed.deploy.secure.server import STEPS
from fewfed.phase import Combine, Role, Upload
from fewfed.tree import Tree

NAMES = sorted(KEYS)
BOUND = 64.0
LIMITS = Limits(value=BOUND, weight=1000.0)


def exact(values: list[Value], path: str, how: Combine) -> list[Fraction]:
    """The combination of one array, as exact fractions."""
    parts = [
        [Fraction(number) for number in dict(tree.leaves(each))[path].double().flatten().tolist()] for _, each in values
    ]
    weights = [Fraction(weight) for weight, _ in values] if how is Combine.MEAN else [Fraction(1)] * len(values)
    total = [
        sum((w * n for w, n in zip(weights, column, strict=True)), Fraction()) for column in zip(*parts, strict=True)
    ]
    return [each / sum(weights) for each in total] if how is Combine.MEAN else total


def check_against_exact(play: Play) -> None:
    """What the server has found is as near to the exact result as it says."""
    sums = play.server.sums
    values = [play.values[name] for name in sums.sites]
    weight = sum(Fraction(weight) for weight, _ in values)
    assert abs(Fraction(sums.weight) - weight) <= Fraction(play.layout.weight.error(len(values))) + weight / 2**52
    for place in play.layout.places:
        found = sums.values[place.path].double().flatten().tolist()
        expected = exact(values, place.path, play.uploads[place.path.split("/")[0]].combine)
        assert len(found) == len(expected)
        for got, wanted in zip(found, expected, strict=True):
            assert abs(Fraction(got) - wanted) <= Fraction(sums.errors[place.path])


@st.composite
def trees(draw: st.DrawFn, sites: int) -> list[Value]:
    dtypes = draw(
        st.lists(st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]), min_size=2, max_size=2)
    )
    shape = draw(st.lists(st.integers(0, 3), max_size=2))

    def array(dtype: torch.dtype, shape: list[int]) -> Tensor:
        count = int(torch.Size(shape).numel())
        numbers = draw(st.lists(st.floats(-BOUND, BOUND), min_size=count, max_size=count))
        return torch.tensor(numbers, dtype=torch.float64).reshape(shape).to(dtype)

    def whole() -> Tensor:
        return torch.tensor(draw(st.lists(st.integers(-int(BOUND), int(BOUND)), min_size=2, max_size=2)))

    def value() -> Value:
        weight = draw(st.one_of(st.integers(1, 1000).map(float), st.floats(1e-3, 1000)))
        model = {"w": array(dtypes[0], shape), "in": {"b": array(dtypes[1], [])}}
        return weight, {"model": model, "change": {"c": whole(), "x": array(dtypes[0], [2])}}

    return [value() for _ in range(sites)]


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Value], int, dict[Kind, frozenset[str]]]:
    """Values, a threshold, and who drops out where: together as many as may."""
    sites = draw(st.integers(3, 6))
    threshold = draw(st.integers(sites // 2 + 1, sites))
    names = NAMES[:sites]
    leaving = draw(st.permutations(names))[: draw(st.integers(0, sites - threshold))]
    gone: dict[Kind, frozenset[str]] = {step: frozenset() for step in STEPS}
    for name in leaving:
        step = draw(st.sampled_from(STEPS))
        gone[step] |= {name}
    return dict(zip(names, draw(trees(sites)), strict=True)), threshold, gone


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(cases())
def test_the_sum_is_the_plain_sum_whoever_drops_out(
    case: tuple[dict[str, Value], int, dict[Kind, frozenset[str]]],
) -> None:
    values, threshold, gone = case
    play = Play(values, limits=LIMITS, threshold=threshold).to_the_end(gone)
    before_masked = gone[Kind.KEYS] | gone[Kind.DEAL] | gone[Kind.MASKED]
    assert play.server.sums.sites == tuple(name for name in values if name not in before_masked)
    check_against_exact(play)


def simple(sites: int, numbers: int = 3) -> dict[str, Value]:
    return {
        name: (float(10 + place), {"model": {"w": torch.randn(numbers)}, "change": {"x": torch.randn(2)}})
        for place, name in enumerate(NAMES[:sites])
    }


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("sites", [3, 4, 5, 7])
def test_as_many_as_may_drop_out_at_each_step_and_not_one_more(step: Kind, sites: int) -> None:
    threshold = sites // 2 + 1
    names = NAMES[:sites]
    play = Play(simple(sites)).to_the_end({step: frozenset(names[: sites - threshold])})
    check_against_exact(play)
    assert set(play.server.left_out.values()) == ({step.name.lower()} if sites > threshold else set())
    play = Play(simple(sites))
    with pytest.raises(
        NoSum, match=f"{threshold - 1} of {sites} sites are left at step '{step.name.lower()}'"
    ) as caught:
        play.to_the_end({step: frozenset(names[: sites - threshold + 1])})
    assert caught.value.blamed == ()
    with pytest.raises(ValueError, match="not known yet"):
        _ = play.server.sums


def test_all_at_the_bound_do_not_overflow() -> None:
    """The largest sum there can be, up and down, of all sites."""
    for sign in (1.0, -1.0):
        arrays: Tree = {"model": {"w": torch.full((4,), sign * BOUND)}, "change": {"x": torch.full((2,), sign * BOUND)}}
        play = Play(dict.fromkeys(NAMES[:7], (1000.0, arrays)), limits=LIMITS).to_the_end()
        assert play.server.sums.values["model/w"].tolist() == [sign * BOUND] * 4
        assert play.server.sums.values["change/x"].tolist() == [sign * BOUND * 7] * 2
        assert play.server.sums.weight == 7000.0


WHOLE: Mapping[str, Upload] = {"count": Upload(Combine.SUM, Role.COUNTS)}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_whole_numbers_are_summed_exactly(dtype: torch.dtype) -> None:
    top = int(min(torch.iinfo(dtype).max // 5, 2**40))
    lowest = 0 if dtype is torch.uint8 else -top
    rows = [torch.tensor([top, lowest, place], dtype=dtype) for place in range(5)]
    values: dict[str, Value] = {name: (1.0, {"count": row}) for name, row in zip(NAMES, rows, strict=False)}
    play = Play(values, WHOLE, Limits(value=2.0**40)).to_the_end()
    assert play.server.sums.values["count"].tolist() == [5 * top, 5 * lowest, 10]
    assert play.server.sums.errors["count"] == 0.0


def test_an_array_of_nothing_and_a_tree_of_nothing() -> None:
    values: dict[str, Value] = {name: (2.0, {"model": {"w": torch.zeros(0, 3)}, "change": {}}) for name in NAMES[:3]}
    play = Play(values).to_the_end()
    assert play.server.sums.values["model/w"].shape == (0, 3)
    assert play.server.sums.weight == 6.0


def test_an_eight_megabyte_model_takes_well_under_a_second_a_site() -> None:
    values: dict[str, Value] = {
        name: (50.0, {"model": {"w": torch.randn(2_000_000)}, "change": {}}) for name in NAMES[:5]
    }
    play = Play(values)
    spent = dict.fromkeys(values, 0.0)
    plain = play.answer

    def timed(name: str, request: bytes) -> bytes:
        began = time.process_time()
        answered = plain(name, request)
        spent[name] += time.process_time() - began
        return answered

    play.answer = timed  # type: ignore[method-assign]
    play.to_the_end({Kind.MASKED: frozenset({NAMES[2]})})
    assert sorted(spent.values())[2] < 0.7, spent
    mean = sum(value[1]["model"]["w"].double() for name, value in values.items() if name != NAMES[2]) / 4
    assert (play.server.sums.values["model/w"] - mean).abs().max() <= play.server.sums.errors["model/w"] < 1e-9


def test_what_is_sent_as_it_is_arrives_of_those_in_the_sum() -> None:
    uploads: dict[str, Upload] = {
        "model": Upload(Combine.MEAN, Role.MODEL),
        "rows": Upload(Combine.CONCAT, Role.FEATURES, 1.0),
    }
    values: dict[str, Value] = {name: (1.0, {"model": torch.ones(2), "rows": torch.ones(3, 2)}) for name in NAMES[:4]}
    extras: Any = {name: name.encode() for name in values}
    play = Play(values, uploads, rest="clear", extras=extras)
    play.to_the_end({Kind.MASKED: frozenset({NAMES[0]})})
    assert play.server.extras == {name: name.encode() for name in NAMES[1:4]}
    assert play.layout.clear.keys() == {"rows"}
