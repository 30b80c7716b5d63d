from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewfed import tree
from fewfed.tree import Tree
from support import same

NAMES = st.text("abcde.", min_size=1, max_size=3)
TREES = st.recursive(
    st.integers(0, 3).map(lambda length: torch.arange(length, dtype=torch.float32)),
    lambda inner: st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
).filter(lambda value: isinstance(value, dict))


def sample(seed: int = 0) -> Tree:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": {"w": torch.randn(3, 2, generator=generator), "b": torch.randn(2, generator=generator)},
        "scale": torch.randn((), generator=generator),
    }


def flat(value: Tree) -> np.ndarray[Any, Any]:
    """All numbers of a tree in one vector, by sorted path."""
    return np.concatenate([leaf.numpy().ravel() for _, leaf in sorted(tree.leaves(value))])


@given(TREES)
def test_paths_and_empty_parts_rebuild_a_tree(value: Tree) -> None:
    assert same(tree.from_leaves(dict(tree.leaves(value)), tree.hollows(value)), value)


def test_leaves_are_named_by_their_path_in_insertion_order() -> None:
    assert [path for path, _ in tree.leaves(sample())] == ["model/w", "model/b", "scale"]


def test_arithmetic_agrees_with_numpy() -> None:
    a, b = sample(1), sample(2)
    assert np.allclose(flat(tree.add(a, b)), flat(a) + flat(b))
    assert np.allclose(flat(tree.sub(a, b)), flat(a) - flat(b))
    assert np.allclose(flat(tree.scale(a, 2.5)), 2.5 * flat(a))
    assert np.allclose(flat(tree.scale(a, torch.tensor(2.5))), 2.5 * flat(a))
    assert not flat(tree.zeros_like(a)).any()
    assert float(tree.dot(a, b)) == pytest.approx(float(flat(a) @ flat(b)), rel=1e-5)
    assert float(tree.sq_distance(a, b)) == pytest.approx(float(((flat(a) - flat(b)) ** 2).sum()), rel=1e-5)


def test_leaves_meet_by_name_whatever_their_order() -> None:
    a = {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([3.0, 4.0])}
    b = {"y": torch.tensor([1.0, 1.0]), "x": torch.tensor([10.0, 10.0])}
    assert same(tree.add(a, b), {"x": torch.tensor([11.0, 12.0]), "y": torch.tensor([4.0, 5.0])})
    assert float(tree.dot(a, b)) == 37.0
    assert float(tree.sq_distance(a, b)) == 81 + 64 + 4 + 9


@pytest.mark.parametrize("function", [tree.add, tree.dot, tree.sq_distance])
def test_trees_of_other_names_are_refused(function: Any) -> None:
    with pytest.raises((KeyError, ValueError)):
        function({"a": torch.ones(1)}, {"b": torch.ones(1), "c": torch.ones(1)})


def test_distance_has_the_gradient_of_a_square() -> None:
    w = torch.tensor([1.0, -2.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(tree.sq_distance({"w": w}, {"w": torch.zeros(2)}), w)
    assert torch.equal(gradient, 2 * w.detach())


def test_a_clone_shares_neither_memory_nor_history() -> None:
    original = {"a": {"w": torch.ones(2, requires_grad=True)}}
    copy = tree.clone(original)
    copy["a"]["w"].add_(1)
    assert torch.equal(original["a"]["w"], torch.ones(2))
    assert not copy["a"]["w"].requires_grad


def test_detach_cuts_history_and_keeps_memory() -> None:
    weight = torch.ones(2, requires_grad=True)
    cut = tree.detach({"w": weight * 1, "v": weight})
    assert not cut["w"].requires_grad
    assert cut["v"].data_ptr() == weight.data_ptr()


def test_where_takes_whole_trees_or_single_elements() -> None:
    a, b = sample(1), sample(2)
    assert same(tree.where(torch.tensor(True), a, b), a)
    assert same(tree.where(torch.tensor(False), a, b), b)
    picked = tree.where(torch.tensor([True, False]), {"w": torch.zeros(2)}, {"w": torch.ones(2)})
    assert picked["w"].tolist() == [0.0, 1.0]


def test_stack_puts_trees_along_a_new_axis() -> None:
    parts = [sample(seed) for seed in range(3)]
    stacked = tree.stack(parts)
    assert stacked["model"]["w"].shape == (3, 3, 2)
    assert stacked["scale"].shape == (3,)
    assert torch.equal(stacked["model"]["b"][1], parts[1]["model"]["b"])


def test_bytes_count_every_type_as_it_travels() -> None:
    value = {
        "f": torch.zeros(3, 2),
        "d": torch.zeros(2, dtype=torch.float64),
        "n": {"i": torch.zeros(5, dtype=torch.int64), "e": {}},
        "h": torch.zeros(4, dtype=torch.bfloat16),
    }
    assert tree.nbytes(value) == 24 + 16 + 40 + 8


def test_to_moves_every_leaf() -> None:
    moved = tree.to(sample(), "meta")
    assert {leaf.device.type for _, leaf in tree.leaves(moved)} == {"meta"}
