"""Rows held back for validation, against a plain count of what every client has."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewfed.data.examples import Dataset, Examples
from fewfed.data.federation import GeneratedFederation, SplitFederation
from fewfed.data.splits import Split
from fewfed.data.validation import hold_back
from fewfed.errors import ConfigError


def split_of(sizes: list[int]) -> Split:
    """Rows in a mixed order, so that none is where its number says."""
    rows = np.random.default_rng(7).permutation(sum(sizes))
    return Split.of("domain", np.split(rows, np.cumsum(sizes)[:-1]))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.sampled_from([0.1, 0.2, 0.25, 1 / 3, 0.5, 0.9]),
       st.integers(0, 5), st.integers(0, 3))  # fmt: skip
def test_every_client_holds_its_share_back_rounded_up_and_keeps_what_it_must(
    sizes: list[int], fraction: float, least: int, seed: int
) -> None:
    expected = [max(0, min(math.ceil(fraction * n - 1e-9), n - max(1, least))) for n in sizes]
    split = split_of(sizes)
    if not any(expected):
        with pytest.raises(ConfigError, match="leaves no validation rows"):
            hold_back(split, fraction, seed, least)
        return
    trained, held = hold_back(split, fraction, seed, least)
    assert held.sizes.tolist() == expected
    for client in range(len(sizes)):
        own, mine = split.rows(client).tolist(), trained.rows(client).tolist()
        assert sorted(mine + held.rows(client).tolist()) == sorted(own)
        assert mine == [row for row in own if row in set(mine)], "the order of the split is kept"


def test_of_one_row_none_is_held_back_and_of_two_rows_one() -> None:
    trained, held = hold_back(split_of([1, 2, 3, 10]), 0.1, seed=0)
    assert held.sizes.tolist() == [0, 1, 1, 1]
    assert trained.sizes.tolist() == [1, 1, 2, 9]


def test_the_seed_draws_which_rows_and_every_row_is_as_likely() -> None:
    split = split_of([10, 10])
    drawn = [hold_back(split, 0.3, seed)[1] for seed in range(600)]
    assert drawn[0].digest == hold_back(split, 0.3, 0)[1].digest
    times = np.bincount(np.concatenate([one.order for one in drawn]), minlength=20)
    assert abs(times / 600 - 0.3).max() < 4 * math.sqrt(0.3 * 0.7 / 600)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="above 0 and below 1"):
        hold_back(split_of([5]), fraction, 0)


def dataset(rows: int = 12, width: int = 2000) -> Dataset:
    """Row r holds the number r everywhere; odd rows come from the domain 'b'."""
    x = torch.arange(rows, dtype=torch.float32)[:, None].expand(rows, width).contiguous()
    domain = np.arange(rows) % 2
    return Dataset(
        "counting", Examples(x, torch.arange(rows) % 3), Examples(x[:4], torch.arange(4) % 3), classes=3,
        groups={"domain": domain}, group_names={"domain": ("a", "b")}, test_groups={"domain": domain[:4]},
    )  # fmt: skip


def test_a_federation_has_the_validation_rows_in_client_order_with_their_groups() -> None:
    data = dataset()
    trained = Split.of("domain", [np.array([0, 2, 4]), np.array([1, 3])])
    held = Split.of("domain", [np.array([8, 6]), np.array([11])])
    federation = SplitFederation(data, trained, validation=held)
    assert federation.validation.x[:, 0].tolist() == [8, 6, 11]
    assert federation.validation.y.tolist() == [2, 0, 2]
    assert {name: inside.tolist() for name, inside in federation.validation_groups.items()} == {
        "a": [True, True, False],
        "b": [False, False, True],
    }
    assert federation.size(0) == 3
    assert federation.union().x[:, 0].tolist() == [0, 2, 4, 1, 3]
    assert federation.most_rows == 3


def test_validation_rows_carry_their_clients_noise() -> None:
    data = dataset()
    trained = Split.of("domain", [np.array([0]), np.array([1])])
    held = Split.of("domain", [np.array([2]), np.array([3])])
    noisy = SplitFederation(data, trained, validation=held, noise=0.5, seed=3)
    assert torch.equal(noisy.validation.x[0], data.train.x[2])
    added = noisy.validation.x[1] - data.train.x[3]
    assert float(added.std()) == pytest.approx(0.5, rel=0.05)
    assert abs(float(torch.corrcoef(torch.stack([added, noisy.examples(1).x[0]]))[0, 1])) < 0.1


def test_without_a_validation_part_there_are_no_such_rows() -> None:
    data = dataset()
    plain = SplitFederation(data, Split.of("iid", [np.arange(12)]))
    made = GeneratedFederation(2, lambda client: data.train, data.test, 3)
    assert len(plain.validation) == len(made.validation) == 0
    assert plain.validation.x.shape[1:] == data.test.x.shape[1:]
    assert not any(bool(inside.any()) for inside in plain.validation_groups.values())


def test_validation_rows_of_another_number_of_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match="of 1 clients for 2"):
        SplitFederation(
            dataset(), Split.of("iid", [np.array([0]), np.array([1])]), validation=Split.of("iid", [np.array([2])])
        )
