"""Balance: exact counts of every class, by hand and for any labels."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from fewfed.data.examples import Examples
from fewfed.methods.parts.balance import classes_of, in_turn, levelled
from fewfed.plan import Random

LABELS = st.lists(st.integers(0, 5), min_size=1, max_size=40)


@given(LABELS, st.integers(0, 50), st.integers(0, 5))
def test_classes_take_turns_until_they_have_no_more_rows(labels: list[int], count: int, seed: int) -> None:
    chosen = in_turn(torch.tensor(labels), count, Random(seed)).tolist()
    assert len(chosen) == len(set(chosen)) == min(count, len(labels))
    held, taken = Counter(labels), Counter(labels[row] for row in chosen)
    most = max(taken.values(), default=0)
    assert all(taken[label] >= min(most - 1, held[label]) for label in held), (
        "nobody has two fewer who had more to give"
    )


@given(LABELS, st.integers(0, 5))
def test_every_class_is_as_frequent_as_the_largest_and_its_rows_alike(labels: list[int], seed: int) -> None:
    rows = Examples(torch.arange(len(labels)).float().unsqueeze(1), torch.tensor(labels))
    found = levelled(rows, Random(seed))
    most = max(Counter(labels).values())
    assert Counter(found.y.tolist()) == dict.fromkeys(labels, most)
    times = Counter(int(value) for value in found.x.flatten())
    for label in set(labels):
        each = [times[row] for row, other in enumerate(labels) if other == label]
        assert max(each) - min(each) <= 1
    assert all(labels[int(value)] == int(y) for value, y in zip(found.x.flatten(), found.y, strict=True))


def test_counts_by_hand() -> None:
    labels = torch.tensor([0] * 6 + [1] * 2 + [2])
    assert Counter(labels[in_turn(labels, 5, Random(0))].tolist()) == {0: 2, 1: 2, 2: 1}
    assert Counter(labels[in_turn(labels, 7, Random(0))].tolist()) == {0: 4, 1: 2, 2: 1}


def test_without_rows_there_is_a_blank_one() -> None:
    found = levelled(Examples(torch.zeros(0, 3, 2), torch.zeros(0, dtype=torch.long)), Random(0))
    assert (found.x.shape, found.y.tolist()) == ((1, 3, 2), [0])


def test_a_label_of_shares_is_of_its_largest_class() -> None:
    assert classes_of(torch.tensor([[0.1, 0.9], [0.7, 0.3]])).tolist() == [1, 0]
    assert in_turn(torch.zeros(0, dtype=torch.long), 3, Random(0)).tolist() == []
