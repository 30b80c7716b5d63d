"""Shared rows that are far from their class are left out, by a rewrite in NumPy, by hand, and in runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from robust_packets import combined, packets, phase_of

from fewfed import tree
from fewfed.engine.robust.bound import Bound
from fewfed.engine.robust.clipped import Clipped
from fewfed.engine.robust.defence import Defence
from fewfed.engine.robust.krum import Krum
from fewfed.engine.robust.median import Median
from fewfed.engine.robust.norm_bound import NormBound
from fewfed.engine.robust.rows import RowFilter, classes_of
from fewfed.engine.robust.trimmed import Trimmed
from fewfed.phase import Combine, Phase, Role, Upload, shared_rows
from fewfed.tree import Tree

ROWS = shared_rows(1.0, features=Role.FEATURES, labels=Role.LABELS)


def rows_phase(**more: Upload) -> Phase:
    return phase_of(**ROWS, **more)


def sent_rows(features: Sequence[Any], labels: Sequence[Any]) -> Tree:
    return {"features": torch.as_tensor(features, dtype=torch.float32), "labels": torch.as_tensor(labels)}


def middle(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values, kind="stable")
    passed = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(passed, passed[-1] / 2 - 1e-9)])


def kept_by_hand(
    clients: Sequence[tuple[np.ndarray, np.ndarray]], factor: float, margin: float | None
) -> list[np.ndarray]:
    """Which rows stay, row by row."""
    centres, usual = {}, {}
    for label in {int(each) for _, labels in clients for each in labels}:
        parts = [rows[labels == label] for rows, labels in clients if (labels == label).any()]
        if len(parts) < 3:
            continue
        centres[label] = np.median([part.mean(0) for part in parts], 0)
        distances = [np.linalg.norm(part - centres[label], axis=1) for part in parts]
        weights = np.concatenate([np.full(len(each), 1 / len(each)) for each in distances])
        usual[label] = middle(np.concatenate(distances), weights)

    def stays(row: np.ndarray, label: int) -> bool:
        if label not in centres:
            return True
        own = np.linalg.norm(row - centres[label])
        others = [np.linalg.norm(row - centre) for other, centre in centres.items() if other != label]
        near = margin is not None and others and own > margin * min(others)
        return bool(own <= factor * usual[label]) and not near

    return [np.array([stays(row, int(label)) for row, label in zip(*each, strict=True)], bool) for each in clients]


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1.1, 1.5, 2.0]), st.sampled_from([None, 1.0, 1.2]))
def test_the_filter_is_a_loop_over_rows(seed: int, factor: float, margin: float | None) -> None:
    random = np.random.default_rng(seed)
    clients = []
    for _ in range(random.integers(3, 7)):
        labels = random.integers(0, 3, random.integers(0, 8))
        rows = random.normal(size=(len(labels), 4)).astype(np.float32) + 2 * labels[:, None].astype(np.float32)
        clients.append((rows.astype(np.float64), labels))
    arrays = [sent_rows(rows.reshape(-1, 2, 2), labels) for rows, labels in clients]
    found, said = combined(Defence(rows=RowFilter(factor, margin)), packets(*arrays), phase=rows_phase())
    expected = kept_by_hand(clients, factor, margin)
    features = np.concatenate([rows[kept] for (rows, _), kept in zip(clients, expected, strict=True)])
    labels = np.concatenate([labels[kept] for (_, labels), kept in zip(clients, expected, strict=True)])
    np.testing.assert_array_equal(found.values["features"].reshape(-1, 4).numpy(), features)
    np.testing.assert_array_equal(found.values["labels"].numpy(), labels)
    lost = {client: int((~kept).sum()) for client, kept in enumerate(expected) if not kept.all()}
    assert said.defended.rows == lost
    assert said.sent_rows()["features"] == tuple(int(kept.sum()) for kept in expected)
    assert said.rows() == {"features": len(labels), "labels": len(labels)}


def honest(count: int) -> list[Tree]:
    """Clients with rows of class 0 around (0, 0) and class 1 around (4, 0)."""
    near = [[0.0, 0.1 * k + 0.1] for k in range(count)]
    return [sent_rows([spot, [4 + spot[0], -spot[1]]], [0, 1]) for spot in near]


def test_far_rows_go_with_their_labels_and_all_else_stays() -> None:
    arrays = [*honest(4), sent_rows([[90.0, 90.0], [0.1, 0.2], [4.0, 0.1]], [0, 0, 1])]
    found, said = combined(Defence(rows=RowFilter(3.0)), packets(*arrays), phase=rows_phase())
    assert found.clients == (0, 1, 2, 3, 4)
    assert found.values["labels"].tolist() == [0, 1] * 5
    assert float(found.values["features"].abs().max()) < 5
    assert said.defended.as_json() == {"rows_left_out": {"4": 1}}


def test_rows_with_the_label_of_another_class_are_found_by_the_margin_alone() -> None:
    """In many dimensions a row of another class is not much further from the centre than one's own."""
    random = torch.Generator().manual_seed(0)
    arrays = [*honest(4), sent_rows([[4.0, 0.1], [0.0, 0.1]], [0, 1])]
    for each in arrays:
        each["features"] = torch.cat([each["features"], 0.3 * torch.randn(2, 8, generator=random)], 1)
    lenient, _ = combined(Defence(rows=RowFilter(9.0)), packets(*arrays), phase=rows_phase())
    assert len(lenient.values["labels"]) == 10
    _, said = combined(Defence(rows=RowFilter(9.0, 1.1)), packets(*arrays), phase=rows_phase())
    assert said.defended.rows == {4: 2}


def test_one_client_with_many_rows_owns_neither_the_centre_nor_the_usual_distance() -> None:
    many = sent_rows([[50.0, 50.0]] * 40, [0] * 40)
    found, said = combined(Defence(rows=RowFilter(3.5)), packets(*honest(4), many), phase=rows_phase())
    assert said.defended.rows == {4: 40}
    assert len(found.values["labels"]) == 8


def test_a_class_of_two_clients_is_not_judged_and_that_is_said() -> None:
    arrays = [sent_rows([[0.0, 0.0]], [0]), sent_rows([[99.0, 0.0]], [0]), sent_rows([[1.0, 0.0]], [1])]
    found, said = combined(Defence(rows=RowFilter(1.0)), packets(*arrays), phase=rows_phase())
    assert len(found.values["labels"]) == 3
    assert said.defended.as_json() == {"rows_unjudged": 3}


def test_labels_that_are_shares_count_as_their_largest_class() -> None:
    arrays = [*honest(4), sent_rows([[90.0, 90.0], [4.0, 0.1]], [0, 1])]
    for each in arrays:
        each["labels"] = 0.8 * torch.nn.functional.one_hot(each["labels"], 2).float() + 0.1
    found, said = combined(Defence(rows=RowFilter(3.0)), packets(*arrays), phase=rows_phase())
    assert said.defended.rows == {4: 1}
    assert found.values["labels"].shape == (9, 2)


def test_labels_that_are_no_classes_are_not_judged() -> None:
    assert classes_of(torch.zeros(3, 8, 8, dtype=torch.long)) is None
    assert classes_of(torch.rand(3)) is None
    assert classes_of({"codes": torch.zeros(3)}) is None
    masks = [{"features": torch.zeros(1, 2), "labels": torch.zeros(1, 4, 4, dtype=torch.long)} for _ in range(4)]
    _, said = combined(Defence(rows=RowFilter(1.0)), packets(*masks), phase=rows_phase())
    assert said.defended.as_json() == {"rows_unjudged": 4}


@pytest.mark.parametrize("how", [Combine.KEEP])
def test_rows_that_the_server_does_not_put_together_are_not_filtered(how: Combine) -> None:
    kept = {"features": Upload(how, Role.FEATURES, 1.0), "labels": Upload(how, Role.LABELS, 1.0)}
    assert not RowFilter().covers(phase_of(**kept))
    assert not RowFilter().covers(phase_of(features=ROWS["features"]))
    assert RowFilter().covers(rows_phase())


def test_all_rows_of_everybody_may_go() -> None:
    arrays = [sent_rows([[0.0, float(k)]], [0]) for k in range(3)]
    found, _ = combined(Defence(rows=RowFilter(1e-9)), packets(*arrays), phase=rows_phase())
    assert found.values["features"].shape == (1, 2)  # The one in the middle is the centre.


SIZES = st.sampled_from([0.0, 1e-38, -1e-3, 1.0, 250.0, -1e9, 9e16])


@settings(max_examples=80)
@given(st.lists(st.lists(SIZES, min_size=6, max_size=6), min_size=1, max_size=7), st.sampled_from(range(5)))
def test_no_packet_that_may_be_sent_ends_a_run(values: list[list[float]], rule: int) -> None:
    """Whatever numbers clients send that a schema lets through, the result is made of finite ones."""
    rules = [Clipped(), Median(), Trimmed(0.2), Krum(0.2), Krum(0.2, many=True)]
    defence = Defence(rules[rule], NormBound(Bound(3.0)), RowFilter(2.0, 1.1))
    uploads = {**ROWS, "model": Upload(Combine.MEAN, Role.MODEL), "control": Upload(Combine.SUM, Role.CONTROL)}
    arrays = [
        {
            **sent_rows([[a, b], [b, a]], [0, 1]),
            "model": {"params": {"w": torch.tensor([c, d])}, "buffers": {"v": torch.tensor([e])}},
            "control": torch.tensor([f]),
        }
        for a, b, c, d, e, f in values
    ]
    shared = {"model": tree.zeros_like(arrays[0]["model"])}
    found, said = combined(defence, packets(*arrays), phase=phase_of(**uploads), shared=shared)
    assert len(found.clients) + len(said.refused) + len(said.defended.not_chosen) == len(values)
    assert all(bool(torch.isfinite(leaf).all()) for _, leaf in tree.leaves(found.values))
