"""What is said of the data is what a count by hand finds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fewfed import Dataset, Examples
from fewfed.data.skew import distance, distance_by_chance
from fewfed.report.look import sentences
from fewfed.runs.experiment import Experiment, Resolved, resolve
from fewfed.runs.look import Look, look
from fewfed.runs.own import Own
from fewfed.runs.prepare import prepare, settled


def looked(sites: np.ndarray, labels: np.ndarray, tested: np.ndarray | None = None) -> Look:
    random = np.random.default_rng(0)
    x = random.normal(size=(len(labels), 3)).astype(np.float32)
    every = Dataset(
        "made", Examples(x, labels), Examples(x, labels), int(labels.max()) + 1, groups={"site": sites},
        test_groups={"site": sites if tested is None else tested},
    )  # fmt: skip
    resolved: Resolved = settled(resolve("fedavg", {"network": "mlp", "validation": 0.2, "split": "site",
                                                    "experiment.data": "made"}), every)  # fmt: skip
    return look(prepare(resolved, data=every), every)


def test_the_look_is_what_is_counted_by_hand() -> None:
    sites = np.repeat([0, 1, 2], [10, 4, 2])
    labels = np.array([0] * 9 + [1] + [0, 0, 1, 1] + [0, 2])
    found = looked(sites, labels)
    assert (found.sites, found.rows, found.smallest, found.median, found.largest) == (3, 16, 2, 4.0, 10)
    assert (found.classes, found.lacking, found.below_classes, found.single_holder) == (3, 3, 1, ("2",))
    assert found.holders == 3
    assert found.named
    assert found.own_rows
    assert found.is_few
    assert found.mean_classes == pytest.approx(2.0)
    text = " ".join(sentences(found))
    assert "1 site has fewer rows than there are classes" in text
    assert "1 class is held by one site alone (2)" in text


def test_sites_of_one_class_and_what_the_commonest_answer_is_right_on_are_counted() -> None:
    found = looked(np.repeat([0, 1, 2], [6, 6, 8]), np.array([0] * 6 + [1] * 6 + [0, 0, 1, 2, 2, 2, 2, 2]))
    assert found.single_class == 2
    assert found.commonest == pytest.approx(8 / 20)
    assert "2 sites have rows of one class alone" in " ".join(sentences(found))


def test_sites_that_hold_nearly_everything_are_counted() -> None:
    found = looked(np.repeat([0, 1, 2, 3], [91, 3, 3, 3]), np.arange(100) % 2)
    assert found.holders == 1
    assert "1 site holds nine tenths of all rows" in " ".join(sentences(found))


def test_one_site_with_more_rows_than_all_others_is_told() -> None:
    found = looked(np.repeat([0, 1, 2, 3], [60, 14, 13, 13]), np.arange(100) % 2)
    assert found.is_mostly_one_site
    assert "One site holds 60% of all rows: a mean over rows is mostly its own" in " ".join(sentences(found))
    assert not looked(np.repeat([0, 1, 2, 3], [50, 20, 15, 15]), np.arange(100) % 2).is_mostly_one_site


def test_rows_of_other_people_are_nobodys_own() -> None:
    sites, labels = np.repeat([0, 1, 2], 20), np.arange(60) % 2
    assert looked(sites, labels).own_rows
    assert not looked(sites, labels, tested=sites + 3).own_rows
    assert not looked(sites, labels, tested=np.where(sites == 0, 3, sites)).own_rows


@given(arrays.arrays(np.int64, st.tuples(st.integers(2, 6), st.integers(2, 5)), elements=st.integers(1, 50)))
def test_the_distance_is_the_part_of_rows_that_are_of_other_classes(counts: np.ndarray) -> None:
    shares, everybody = counts / counts.sum(1, keepdims=True), counts.sum(0) / counts.sum()
    by_hand = (0.5 * np.abs(shares - everybody).sum(1) * counts.sum(1)).sum() / counts.sum()
    assert distance(counts) == pytest.approx(by_hand)
    assert 0 <= distance(counts) < 1


def test_what_chance_makes_of_it_shrinks_with_the_sites() -> None:
    small, large = np.full((50, 5), 2), np.full((50, 5), 200)
    assert distance(small) == distance(large) == 0
    assert distance_by_chance(small) > 4 * distance_by_chance(large) > 0
    apart = np.diag([40] * 5)
    assert distance(apart) == pytest.approx(0.8)
    assert distance_by_chance(apart) < 0.2


def test_own_objects_are_described_by_their_name() -> None:
    assert Own(None, None).described(Experiment()).data == "digits"
