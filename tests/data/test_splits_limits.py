"""Rules and numbers that no split can be made of: one sentence, and soon."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from fewfed.data.split_dirichlet import HOPELESS_AFTER, DirichletOptions
from fewfed.data.split_draws import Draws, LegacyDraws, ModernDraws
from fewfed.data.splits import make_split, parse_rule
from fewfed.errors import ConfigError, DataError
from fewfed.runs.experiment import Experiment
from fewfed.settings import check

LABELS = np.arange(100) % 10


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("dir:1e308", r"MU is '1e308', expected a number above 0, at most 1e\+06"),
        ("dirm:1e-300", r"MU is '1e-300', expected a number above 0, at least 1e-06"),
        ("size:5e-324", "BETA is '5e-324'"),
        ("dir:inf", r"MU is 'inf', expected a number above 0, at most 1e\+06"),
        ("dir:nan", r"MU is 'nan', expected a number above 0 \("),
        ("qua:" + "9" * 30, "Q is '9{30}', expected a whole number of at least 1, at most"),
        ("qua:" + "9" * 5000, r"Q is '9{60}\.\.\.', expected a whole number"),
        ("exact:" + "9" * 400 + ":1", "expected a whole number of at least 1"),
        ("qua:²", "Q is '²', expected a whole number"),
        ("z" * 100_000, r"unknown split rule 'z{60}\.\.\.'"),
        ("dir" + ":1" * 100_000, "has 100000 parameters"),
    ],
)
def test_numbers_out_of_range(rule: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        parse_rule(rule)
    assert len(str(caught.value)) < 400


ENDS = [(f"{rule}:{value}", None) for rule in ("dir", "dirm", "size") for value in ("1e-6", "1e6")]


@pytest.mark.parametrize(("rule", "legacy_seed"), [*ENDS, ("dir:1e-6", 1), ("dir:1e6", 1)])
def test_the_ends_of_the_range_are_numbers_still(rule: str, legacy_seed: int | None) -> None:
    try:
        split = make_split(rule, LABELS, 10, 4, 0, min_size=0, legacy_seed=legacy_seed)
    except ConfigError as error:
        said = str(error)
    else:
        said = ""
        assert sorted(split.order.tolist()) == list(range(100))
    assert "MU" in said or not said


@pytest.mark.parametrize("seed", [-1, 2**32, 2**80])
def test_seeds_of_the_old_generator(seed: int) -> None:
    with pytest.raises(ConfigError, match="legacy_seed = "):
        make_split("qua:2", LABELS, 10, 5, 0, legacy_seed=seed)
    assert len(make_split("qua:2", LABELS, 10, 5, 0, legacy_seed=2**32 - 1)) == 5


def test_the_setting_has_the_same_range() -> None:
    check(Experiment(legacy_seed=2**32 - 1))
    with pytest.raises(ConfigError, match="legacy_seed = 4294967296: expected >= -1 and < 4294967296"):
        check(Experiment(legacy_seed=2**32))


@pytest.mark.parametrize("clients", [10**5, 10**9, 10**30])
@pytest.mark.parametrize("rule", ["iid", "dir:1", "dirm:1", "size:1", "qua:1", "exact:1:1"])
def test_more_clients_than_could_be_kept(rule: str, clients: int) -> None:
    for min_size in (None, 0):
        with pytest.raises(ConfigError, match="clients"):
            make_split(rule, LABELS, 10, clients, 0, min_size=min_size)
    assert len(make_split("iid", LABELS, 10, 10_000, 0, min_size=0)) == 10_000


@pytest.mark.parametrize(
    ("rule", "labels", "clients", "options"),
    [
        ("dirm:0.01", np.arange(1437) % 10, 50, {}),
        ("dir:0.05", np.arange(1437) % 10, 50, {"min_size": 20}),
        ("dir:1", np.arange(60) % 3, 50, {}),
        ("dirm:0.0001", np.arange(60) % 3, 40, {}),
        ("dir:0.1", np.arange(300) % 10, 30, {"min_size": 10, "legacy_seed": 1}),
    ],
)
def test_hopeless_draws_are_given_up_early(
    rule: str, labels: np.ndarray, clients: int, options: dict[str, int]
) -> None:
    start = time.process_time()
    with pytest.raises(ConfigError, match=f"found in {HOPELESS_AFTER} attempts; the best attempt had"):
        make_split(rule, labels, 100, clients, 0, **options)
    assert time.process_time() - start < 2


def test_what_cannot_be_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="60 rows are too few for 1 clients with at least 100 rows each"):
        make_split("dir:1", np.arange(60) % 3, 100, 1, 0, legacy_seed=1)
    with pytest.raises(ConfigError, match="needs 150 rows but there are 100"):
        make_split("qua:3", LABELS, 10, 50, 0)
    start = time.process_time()
    with pytest.raises(ConfigError, match="use fewer classes on each client, or exact:1:1"):
        make_split("exact:2000000000:1", LABELS, 10, 100, 0)
    with pytest.raises(
        ConfigError, match="cannot serve 20 clients from 100 rows: use at most 10 clients, or exact:5:2"
    ):
        make_split("exact:10:2", LABELS, 10, 20, 0)
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "make", [lambda: ModernDraws(np.random.default_rng(3)), lambda: LegacyDraws(np.random.RandomState(3))]
)
@pytest.mark.parametrize("mu", [0.01, 0.5, 20.0])
def test_skipped_draws_leave_the_generator_as_single_ones_do(make: Callable[[], Draws], mu: float) -> None:
    """Proportions of empty classes are drawn together; what comes after must not notice."""
    one, other = make(), make()
    concentration = np.full(7, mu)
    for _ in range(12):
        other.dirichlet(concentration)
    one.skip(concentration, 12)
    one.skip(concentration, 0)
    assert [one.below(10**6) for _ in range(5)] == [other.below(10**6) for _ in range(5)]


@pytest.mark.parametrize("legacy_seed", [None, 5])
def test_classes_without_rows_change_nothing_but_the_draws(legacy_seed: int | None) -> None:
    """The rule written out with a draw for each class, empty or not."""
    labels = np.array([1, 4, 4, 1, 6, 6, 6, 1, 4, 6] * 12)
    clients, classes, mu = 5, 9, 2.0
    options = DirichletOptions(min_size=1, slices=1)
    split = make_split(f"dir:{mu}", labels, classes, clients, 3, legacy_seed=legacy_seed, options=options)
    if legacy_seed is None:
        generator = np.random.default_rng(3)
        rows = generator.permutation(np.arange(len(labels)))
        draws: Draws = ModernDraws(generator)
    else:
        rows = np.arange(len(labels))
        draws = LegacyDraws(np.random.RandomState(legacy_seed))
    assert split.attempts == 1
    sizes = np.zeros(clients, int)
    counts = np.zeros((classes, clients), int)
    for label in range(classes):
        members = rows[labels[rows] == label]
        if draws.replays:
            draws.shuffle(members)
        p = draws.dirichlet(np.full(clients, mu)) * (sizes < len(labels) / clients)
        if len(members):
            ends = [*(np.cumsum(p / p.sum()) * len(members)).astype(int)[:-1].tolist(), len(members)]
            counts[label] = np.diff([0, *ends])
            sizes += counts[label]
    assert split.counts(labels, classes).T.tolist() == counts.tolist()


def test_groups_that_do_not_fit_the_rows() -> None:
    for ids in (np.zeros(0), np.zeros(99), np.zeros((100, 1)), np.array([None] * 100)):
        with pytest.raises(DataError, match="subject ids have shape"):
            make_split("subject", LABELS, 10, 0, 0, groups={"subject": ids})


def test_labels_of_any_whole_type_give_the_same_split() -> None:
    digests = {
        make_split("dir:0.5", LABELS.astype(kind), 10, 5, 0).digest
        for kind in (np.int8, np.uint8, np.int32, np.uint64, np.int64)
    }
    assert len(digests) == 1
    with pytest.raises(DataError, match="2000000 classes are too many"):
        make_split("iid", LABELS, 2_000_000, 5, 0)
