"""Arrays and lists of numbers that a user makes examples of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fewfed import Dataset, Examples
from fewfed.data.examples import checked
from fewfed.errors import DataError

NUMBERS = st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.uint8, np.int32, np.int64, np.bool_, ">f8"])


@given(st.data(), NUMBERS)
def test_numbers_of_every_kind_become_tensors_of_the_same_numbers(data: Any, kind: Any) -> None:
    x = data.draw(arrays.arrays(kind, arrays.array_shapes(max_dims=3, max_side=4)))
    y = np.arange(len(x))[::-1]  # A view that runs backwards, which torch does not take as it is.
    made = Examples(x, y)
    assert (made.x.dtype, made.y.dtype) == (torch.float32, torch.int64)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(made.x.numpy(), x.astype(np.float32))
    assert made.y.tolist() == y.tolist()
    again = Examples(x.tolist(), y.tolist())
    assert torch.equal(again.y, made.y)


def test_the_users_own_array_may_change_later() -> None:
    x = np.ones((2, 3), np.float32)
    made = Examples(x, [0, 1])
    x[:] = 5
    assert bool(made.x.eq(1).all())


def test_tensors_are_taken_as_they_are() -> None:
    x, y = torch.ones(2, 3, dtype=torch.float64), torch.tensor([0, 1], dtype=torch.int32)
    made = Examples(x, y)
    assert made.x is x
    assert made.y is y


class Frame:
    """What a table of another library hands over."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.arange(6.0).reshape(3, 2)


def test_what_says_it_is_an_array_is_one() -> None:
    assert Examples(Frame(), [0, 1, 0]).x.tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("x", "says"),
    [
        ("text", "inputs are a str"),
        (None, "inputs are a NoneType"),
        (5, "inputs are a int"),
        ({"a": 1}, "inputs are a dict"),
        ([[1, 2], [3]], "inputs are no array"),
        ([["a", "b"]], "inputs are an array of <U1"),
        (np.array([{}, {}]), "inputs are an array of object"),
        (np.array([1j]), "inputs are an array of complex128"),
        (np.array(["2020-01-01"], "datetime64[D]"), "inputs are an array of datetime64"),
        (np.ma.array([1.0, 2.0], mask=[False, True]), "masked values"),
        (np.array([2**64 - 1], np.uint64), "numbers below 2\\^63"),
        (object(), "inputs are a object"),
    ],
)
def test_what_is_no_numbers_is_refused_in_a_sentence(x: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        Examples(x, [0])


def fine(**changes: Any) -> Dataset:
    part = Examples([[0.0, 1.0], [1.0, 0.0]], [0, 1])
    return Dataset(**{"name": "mine", "train": part, "test": part, "classes": 2, **changes})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": 5}, "the name of a data set is 5"),
        ({"name": ""}, "the name of a data set is ''"),
        ({"train": ([[0.0]], [0])}, "train is a tuple: expected Examples"),
        ({"test": None}, "test is a NoneType: expected Examples"),
        ({"classes": "two"}, "classes = 'two'"),
        ({"classes": 2.0}, "classes = 2.0"),
        ({"classes": True}, "classes = True"),
        ({"classes": 0}, "classes = 0"),
        ({"groups": [1, 2]}, "groups are a list"),
        ({"groups": {"client": [0, 1]}}, "client ids are no array of whole numbers"),
        ({"groups": {"client": np.array(["a", "b"])}}, "client ids are no array of whole numbers"),
        ({"test_groups": {"client": np.zeros((2, 1), int)}}, "client ids are no array of whole numbers"),
        ({"train": Examples([[0.0, 1.0]], [0.5])}, "labels are torch.float32"),
    ],
)
def test_a_data_set_made_by_hand_is_checked(changes: dict[str, Any], says: str) -> None:
    assert checked(fine()) is not None
    with pytest.raises(DataError, match=says):
        checked(fine(**changes))


def test_anything_else_is_no_data_set() -> None:
    with pytest.raises(DataError, match="data is a tuple: expected Dataset"):
        checked((1, 2))  # type: ignore[arg-type]
