from __future__ import annotations

import hashlib
import json
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewfed.data import splits
from fewfed.data.splits import DirichletOptions, Split, make_split, parse_rule
from fewfed.errors import ConfigError, DataError

QUICK = DirichletOptions(max_attempts=200)
RANDOM_RULES = ["iid", "qua:2", "dir:0.1", "dir:0.5", "dirm:0.3", "exact:6:2", "size:0.3"]
BALANCED = np.repeat(np.arange(10), 100)


@st.composite
def labelled(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Labels of random class sizes, some of them zero, in random order."""
    sizes = draw(st.lists(st.integers(0, 60), min_size=2, max_size=7).filter(any))
    seed = draw(st.integers(0, 99))
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes)), len(sizes)


@settings(max_examples=150, deadline=None)
@given(
    data=labelled(),
    rule=st.sampled_from(RANDOM_RULES),
    clients=st.integers(1, 12),
    seed=st.integers(0, 2**32),
    volume=st.sampled_from([1.0, 0.7, 0.2]),
)
def test_every_rule_partitions_or_explains(
    data: tuple[np.ndarray, int], rule: str, clients: int, seed: int, volume: float
) -> None:
    labels, classes = data
    try:
        split = make_split(rule, labels, classes, clients, seed, volume=volume, options=QUICK)
    except ConfigError:
        return
    allowed = max(1, round(volume * len(labels)))
    assert len(split) == clients
    assert split.sizes.min() >= 1
    assert len(np.unique(split.order)) == len(split.order) <= allowed
    assert split.order.min() >= 0
    assert split.order.max() < len(labels)
    if rule.startswith(("iid", "dir", "size")):
        assert len(split.order) == allowed
    assert split.counts(labels, classes).sum(1).tolist() == split.sizes.tolist()


@settings(max_examples=60, deadline=None)
@given(
    data=labelled(),
    clients=st.integers(1, 10),
    shares=st.integers(1, 8),
    classes_each=st.integers(1, 4),
)
def test_exact_with_equal_shares_succeeds_whenever_slots_suffice(
    data: tuple[np.ndarray, int], clients: int, shares: int, classes_each: int
) -> None:
    """Closed form: class c offers floor(n_c / share) slots, at most one to each client; K * Q slots are needed."""
    labels, classes = data
    sizes = np.bincount(labels, minlength=classes)
    feasible = classes_each <= classes and np.minimum(sizes // shares, clients).sum() >= clients * classes_each
    rule = f"exact:{shares * classes_each}:{classes_each}"
    if not feasible:
        with pytest.raises(ConfigError):
            make_split(rule, labels, classes, clients, 0)
        return
    counts = make_split(rule, labels, classes, clients, 0).counts(labels, classes)
    assert set(np.unique(counts)) <= {0, shares}
    assert ((counts > 0).sum(1) == classes_each).all()


@pytest.mark.parametrize("seed", range(5))
def test_exact_with_unequal_shares_can_use_every_row(seed: int) -> None:
    """100 = 4 * 17 + 2 * 16, so 20 clients of 50 rows can use up ten classes of 100."""
    split = make_split("exact:50:3", BALANCED, 10, 20, seed)
    counts = split.counts(BALANCED, 10)
    assert (np.sort(counts, axis=1)[:, -4:] == [0, 16, 17, 17]).all()
    assert np.array_equal(np.sort(split.order), np.arange(1000))


@settings(max_examples=100, deadline=None)
@given(data=labelled(), clients=st.integers(1, 10), rows_each=st.integers(1, 30), classes_each=st.integers(1, 4))
def test_exact_gives_exactly_what_it_says(
    data: tuple[np.ndarray, int], clients: int, rows_each: int, classes_each: int
) -> None:
    labels, classes = data
    try:
        counts = make_split(f"exact:{rows_each}:{classes_each}", labels, classes, clients, 0).counts(labels, classes)
    except ConfigError:
        return
    assert (counts.sum(1) == rows_each).all()
    assert ((counts > 0).sum(1) == classes_each).all()
    assert np.ptp(counts[counts > 0]) <= 1


def test_exact_names_a_setting_that_works() -> None:
    with pytest.raises(ConfigError, match="at most 20 clients, or exact:40:2"):
        make_split("exact:50:2", BALANCED, 10, 25, 0)
    assert len(make_split("exact:50:2", BALANCED, 10, 20, 0)) == 20
    assert len(make_split("exact:40:2", BALANCED, 10, 25, 0)) == 25


def test_exact_says_which_classes_nobody_holds() -> None:
    labels = np.repeat([0, 1], [300, 100])
    assert make_split("exact:20:1", labels, 2, 5, 0).note == "classes on no client, so not used: 1 (100 rows)"
    assert make_split("exact:20:2", labels, 2, 5, 0).note == ""
    assert make_split("exact:20:1", labels, 2, 20, 0).note == ""


@settings(max_examples=60, deadline=None)
@given(classes_each=st.integers(1, 10), clients=st.integers(1, 60), seed=st.integers(0, 1000))
def test_quantity_gives_each_client_its_classes(classes_each: int, clients: int, seed: int) -> None:
    counts = make_split(f"qua:{classes_each}", BALANCED, 10, clients, seed).counts(BALANCED, 10)
    assert ((counts > 0).sum(1) == classes_each).all()
    assert (counts[np.arange(clients), np.arange(clients) % 10] > 0).all()
    for held in counts.T:
        owned = held[held > 0]
        assert len(owned) == 0 or (owned.sum() == 100 and owned.max() - owned.min() <= 1)


def test_quantity_says_which_classes_nobody_holds() -> None:
    split = make_split("qua:1", BALANCED, 10, 8, 0)
    assert "8 (100 rows), 9 (100 rows)" in split.note
    assert len(split.order) == 800


@pytest.mark.parametrize(("clients", "each"), [(10, 500), (100, 50), (500, 10)])
def test_iid_spreads_every_class_evenly(clients: int, each: int) -> None:
    labels = np.tile(np.arange(10), 5000)
    assert (make_split("iid", labels, 10, clients, 0).counts(labels, 10) == each).all()


def test_iid_differs_by_one_row_at_most() -> None:
    labels = np.repeat(np.arange(3), [50, 31, 7])
    counts = make_split("iid", labels, 3, 6, 0).counts(labels, 3)
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(1)) <= 1


def test_size_skew_grows_as_beta_falls_and_keeps_the_floor() -> None:
    def spread(beta: float) -> float:
        return float(
            np.mean([make_split(f"size:{beta}", BALANCED, 10, 20, s, min_size=5).sizes.std() for s in range(9)])
        )

    assert spread(0.2) > spread(2) > spread(50)
    assert make_split("size:0.01", BALANCED, 10, 20, 0, min_size=5).sizes.min() == 5


def test_dirichlet_skew_of_labels_grows_as_mu_falls() -> None:
    """Published means of classes per client for CIFAR-like data: about 7 at 0.5 and 3.3 at 0.1."""
    labels = np.repeat(np.arange(10), 5000)
    for mu, published in ((0.5, 7.0), (0.1, 3.3)):
        counts = make_split(f"dir:{mu}", labels, 10, 500, 0).counts(labels, 10)
        assert abs((counts > 0).sum(1).mean() - published) < 0.5


@pytest.mark.parametrize(("rule", "min_size"), [("dir:0.1", 3), ("dir:0.5", 10)])
def test_a_thousand_dirichlet_clients_take_under_two_seconds(rule: str, min_size: int) -> None:
    labels = np.repeat(np.arange(10), 5000)
    start = time.process_time()
    split = make_split(rule, labels, 10, 1000, 0)
    assert time.process_time() - start < 2
    assert split.sizes.min() >= min_size
    assert np.array_equal(np.sort(split.order), np.arange(50_000))


def test_default_minimum_is_lowered_with_a_note_but_an_asked_one_is_not() -> None:
    labels = np.repeat(np.arange(2), 500)
    split = make_split("dir:0.3", labels, 2, 50, 0)
    assert 1 <= split.sizes.min() < 4
    assert f"smallest client {split.sizes.min()}" in split.note
    with pytest.raises(ConfigError, match=r"at least 10 rows each was found in 200 attempts"):
        make_split("dir:0.3", labels, 2, 50, 0, min_size=10, options=QUICK)


def test_the_minimum_an_error_names_works() -> None:
    labels = np.repeat(np.arange(10), 100)
    with pytest.raises(ConfigError, match=r"use min_size = \d+") as caught:
        make_split("dir:0.5", labels, 10, 40, 0, min_size=20, options=QUICK)
    found = int(str(caught.value).split("min_size = ")[1].split(" ")[0])
    assert make_split("dir:0.5", labels, 10, 40, 0, min_size=found, options=QUICK).sizes.min() == found


def test_slices_by_order_keep_contiguous_rows_together() -> None:
    options = DirichletOptions(slices=2, slice_by="order", min_size=1)
    split = make_split("dir:1", np.tile(np.arange(5), 80), 5, 10, 0, options=options)
    first = np.concatenate([split.rows(k) for k in range(5)])
    assert np.array_equal(np.sort(first), np.arange(200))


@pytest.mark.parametrize("clients", [101, 250, 333])
def test_slices_need_not_divide_the_clients(clients: int) -> None:
    labels = np.random.default_rng(0).integers(0, 10, 50 * clients)
    split = make_split("dir:0.5", labels, 10, clients, 0)
    assert len(split) == clients
    assert np.array_equal(np.sort(split.order), np.arange(len(labels)))


@pytest.mark.parametrize("rule", RANDOM_RULES)
def test_same_seed_same_split_other_seed_other_split(rule: str) -> None:
    def digest(seed: int) -> str:
        return make_split(rule, BALANCED, 10, 20, seed).digest

    assert digest(4) == digest(4) != digest(5)


def test_a_part_of_natural_groups_has_a_floor_where_one_is_asked_for() -> None:
    """FedFA's mini-Prostate: int(max(0.1 · n, 32)) of n slices, here an eighth of the 80 % that are not tested."""
    totals, sixth = [261, 157, 468, 384, 411, 175], [32, 32, 46, 38, 41, 32]
    trained = [n - math.ceil(n / 5) for n in totals]
    site = np.repeat(np.arange(6), trained)
    split = make_split("domain", np.zeros(len(site), int), 1, 0, 0, groups={"domain": site}, volume=0.125, min_size=32)
    assert [int(max(0.1 * n, 32)) for n in totals] == sixth
    assert np.abs(split.sizes - sixth).max() <= 1, "ours rounds, theirs cuts"
    for client in range(6):
        rows = split.rows(client)
        assert len(set(rows.tolist())) == len(rows)
        assert set(site[rows].tolist()) == {client}
    plain = make_split("domain", np.zeros(len(site), int), 1, 0, 0, groups={"domain": site}, volume=0.125)
    assert plain.sizes.tolist() == [round(n / 8) for n in trained]


def test_a_group_smaller_than_the_floor_is_refused() -> None:
    with pytest.raises(ConfigError, match="leaves a client with 3 rows but at least 5"):
        make_split(
            "domain", np.zeros(9, int), 1, 0, 0, groups={"domain": np.array([0] * 6 + [1] * 3)}, volume=0.5, min_size=5
        )


def test_natural_groups_are_clients_in_order_of_their_ids() -> None:
    ids = np.array([7, 3, 7, 3, 3, 9])
    split = make_split("subject", np.zeros(6, dtype=int), 1, 0, 0, groups={"subject": ids})
    assert [split.rows(k).tolist() for k in range(3)] == [[1, 3, 4], [0, 2], [5]]
    assert len(make_split("subject", np.zeros(6, dtype=int), 1, 3, 0, groups={"subject": ids})) == 3
    few = make_split("subject", np.zeros(6, dtype=int), 1, 0, 0, groups={"subject": ids}, volume=0.1)
    assert few.sizes.tolist() == [1, 1, 1]
    with pytest.raises(ConfigError, match="clients = 3"):
        make_split("subject", np.zeros(6, dtype=int), 1, 4, 0, groups={"subject": ids})
    with pytest.raises(ConfigError, match="only subject ids"):
        make_split("domain", np.zeros(6, dtype=int), 1, 0, 0, groups={"subject": ids})


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("dirr:0.5", "did you mean"),
        ("quantum", "split rule"),
        ("qua", "written 'qua:Q'"),
        ("iid:3", "expected 0"),
        ("qua:x", "whole number"),
        ("qua:2.5", "whole number"),
        ("dir:0", "above 0"),
        ("dir:-1", "above 0"),
        ("dir:nan", "above 0"),
        ("size:inf", "above 0"),
        ("exact:50", "exact:N:Q"),
    ],
)
def test_bad_rules_are_explained(rule: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_rule(rule)


def test_requests_that_do_not_fit_the_data_are_explained() -> None:
    with pytest.raises(ConfigError, match="qua:1 to qua:10"):
        make_split("qua:11", BALANCED, 10, 5, 0)
    with pytest.raises(ConfigError, match="exact:20:10"):
        make_split("exact:20:11", BALANCED, 10, 5, 0)
    with pytest.raises(ConfigError, match="exact:4:4"):
        make_split("exact:3:4", BALANCED, 10, 5, 0)
    with pytest.raises(ConfigError, match="at most 1000 clients"):
        make_split("iid", BALANCED, 10, 1001, 0)
    with pytest.raises(ConfigError, match="volume"):
        make_split("iid", BALANCED, 10, 5, 0, volume=0)
    with pytest.raises(ConfigError, match="clients = 0"):
        make_split("iid", BALANCED, 10, 0, 0)
    with pytest.raises(ConfigError, match="legacy_seed"):
        make_split("iid", BALANCED, 10, 5, 0, legacy_seed=1)
    with pytest.raises(ConfigError, match="min_size = 300 or fewer clients"):
        make_split("client", BALANCED, 10, 0, 0, min_size=301, groups={"client": np.arange(1000) // 700})
    with pytest.raises(DataError, match="0 to 8"):
        make_split("iid", BALANCED, 9, 5, 0)
    with pytest.raises(DataError, match="whole number"):
        make_split("iid", BALANCED.astype(float), 10, 5, 0)


def test_one_client_takes_everything_even_where_the_last_class_is_empty() -> None:
    labels = np.array([0, 0, 1, 1])
    assert make_split("dir:0.5", labels, 3, 1, 0).sizes.tolist() == [4]


def test_split_is_read_only_and_checks_the_client() -> None:
    split = Split.of("mine", [np.array([2, 0]), np.array([1])])
    assert split.rows(0).tolist() == [2, 0]
    with pytest.raises(ValueError, match="read-only"):
        split.order[0] = 5
    with pytest.raises(IndexError):
        split.rows(2)
    with pytest.raises(IndexError):
        split.rows(-1)


def test_manifest_is_json_and_describes_the_split() -> None:
    split = make_split("qua:2", BALANCED, 10, 20, 3)
    manifest = json.loads(json.dumps(split.manifest(BALANCED, 10)))
    assert manifest["rule"] == "qua:2"
    assert manifest["seed"] == 3
    assert manifest["clients"] == 20
    assert manifest["sizes"]["mean"] == 50
    assert manifest["sparsity"] == pytest.approx(0.8)
    assert manifest["mean_classes"] == 2
    assert manifest["digest"] == split.digest


@pytest.mark.parametrize("rule", ["iid", "qua:1", "dir:5", "dirm:5", "exact:200:1", "size:5"])
def test_rows_of_a_class_are_mixed_before_they_are_cut(rule: str) -> None:
    """A file sorted by subject must not make clients of neighbouring rows."""
    split = make_split(rule, np.zeros(1000, dtype=int), 1, 4, 0)
    for client in range(4):
        assert len(set(split.rows(client) // 100)) == 10


def test_counting_and_hashing_in_parts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    split = make_split("dir:0.5", BALANCED, 10, 17, 0)
    digest = hashlib.sha256(split.offsets.astype("<i8").tobytes() + split.order.astype("<i8").tobytes()).hexdigest()
    monkeypatch.setattr(splits, "_CLIENTS_AT_ONCE", 3)
    counts = split.counts(BALANCED, 10)
    for client in range(17):
        assert counts[client].tolist() == [int((BALANCED[split.rows(client)] == label).sum()) for label in range(10)]
    assert split.digest == digest
