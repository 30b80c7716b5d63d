"""What looking at no row comes to is what scikit-learn's metrics say of one answer to the rows that are judged on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score, log_loss

from fewfed import Dataset, Examples
from fewfed.runs.cells import LoadedData
from fewfed.runs.experiment import Resolved, resolve
from fewfed.runs.guessing import guess, guesses
from fewfed.runs.own import Own
from fewfed.runs.prepare import prepare, settled

MEASURES = {
    "accuracy": accuracy_score,
    "balanced_accuracy": balanced_accuracy_score,
    "macro_f1": lambda y, said: f1_score(y, said, average="macro", zero_division=0.0),
}
counts = arrays.arrays(np.int64, st.tuples(st.integers(1, 4), st.just(3)), elements=st.integers(0, 6)).filter(
    lambda found: bool(found.sum(1).all())
)


def labels(rows: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(rows)), rows)


@pytest.mark.filterwarnings("ignore:y_pred contains classes:UserWarning", "ignore:A single label:UserWarning")
@pytest.mark.parametrize("metric", MEASURES)
@given(judged=counts)
def test_it_is_the_best_answer_to_all_rows_where_sites_train_on_such_that_tell_nothing(
    metric: str, judged: np.ndarray
) -> None:
    each = [[MEASURES[metric](labels(rows), np.full(rows.sum(), answer)) for rows in judged] for answer in range(3)]
    assert guess(np.zeros_like(judged), judged, metric) == pytest.approx(max(np.mean(each, axis=1)))


@given(judged=counts)
def test_the_loss_is_that_of_the_shares_of_classes(judged: np.ndarray) -> None:
    """With as many rows at every site, the mean over sites is that over rows."""
    level = 60 * judged // judged.sum(1, keepdims=True)
    level[:, 0] += 60 - level.sum(1)
    y, shares = np.concatenate([labels(rows) for rows in level]), level.sum(0) / level.sum()
    said = log_loss(y, np.tile(shares, (len(y), 1)), labels=[0, 1, 2])
    assert guess(level, level, "loss") == pytest.approx(said)


def test_a_site_may_always_answer_the_class_that_it_knows_best() -> None:
    trained, judged = np.array([[9, 1], [1, 9], [0, 0]]), np.array([[4, 1], [2, 3], [0, 0]])
    assert guess(trained, judged, "accuracy") == pytest.approx((4 / 5 + 3 / 5) / 2)
    tied = np.array([[5, 5], [1, 9], [0, 0]])
    assert guess(tied, judged, "accuracy") == pytest.approx(0.6), "one answer to all: 4 of 5 and 2 of 5"
    assert guess(trained, judged, "auc") == 0.5


def test_it_is_counted_on_the_rows_that_are_held_back_and_not_on_all() -> None:
    """One site holds most rows, of one class: of all rows that is 77 of 100, but sites count alike."""
    site = np.repeat([0, 1, 2, 3], [70, 10, 10, 10])
    of_sites = [[67, 3], [3, 7], [4, 6], [3, 7]]
    y = np.concatenate([np.repeat([0, 1], rows) for rows in of_sites])
    x = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    every = Dataset("made", Examples(x, y), Examples(x, y), 2, groups={"site": site}, test_groups={"site": site})
    resolved: Resolved = settled(
        resolve("fedavg", {"network": "mlp", "validation": 0.2, "split": "site", "experiment.data": "made"}), every
    )
    found = {own: guesses(resolved, LoadedData(Own(every, None)), [0, 3], own) for own in (True, False)}
    for seed in (0, 3):
        again = resolve("fedavg", {"network": "mlp", "validation": 0.2, "split": "site", "experiment.data": "made",
                                   "experiment.seed": seed})  # fmt: skip
        federation = prepare(settled(again, every), data=every).job.federation
        groups = federation.validation_groups
        held = np.array([np.bincount(federation.validation.y[groups[str(k)]], minlength=2) for k in range(4)])
        assert found[False][seed] == pytest.approx(held.sum(0).max() / held.sum())
        commonest = [0, 1, 1, 1]
        at_home = np.mean([held[k, commonest[k]] / held[k].sum() for k in range(4)])
        same = (held / held.sum(1, keepdims=True)).mean(0).max()
        assert found[True][seed] == pytest.approx(max(at_home, same))


def test_what_knows_no_such_level_has_none() -> None:
    resolved = settled(
        resolve("fedavg", {"validation": 0.2, "metric": "calibration_error"}), LoadedData().of(resolve("fedavg", {}))
    )
    assert guesses(resolved, LoadedData(), [0], own=False) == {}
