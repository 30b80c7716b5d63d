"""Separation of features before, after local training and after aggregation."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import davies_bouldin_score

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.diagnostics.feature_map import embed, feature_map, plot_features
from fewfed.diagnostics.feature_quality import FeatureQuality, penultimate_features, spread_rows
from support import digits, digits_network, job_of, run


def test_every_score_is_that_of_the_model_it_names() -> None:
    quality = FeatureQuality(clients=2, test_rows=100)
    job = job_of("fedavg")
    recorded = run(job, rounds=2, observers=[quality])
    first, second = quality.rounds
    assert len(first.clients) == 2
    test = spread_rows(job.federation.test, 100)

    def expected(model: object, rows: Examples) -> float:
        features = penultimate_features(job.net, model, rows.x)  # type: ignore[arg-type]
        return float(davies_bouldin_score(features.numpy(), rows.y.numpy()))

    assert first.before.test == pytest.approx(expected(job.net.model(), test), rel=1e-4)
    assert first.aggregated.test == second.before.test
    final = recorded.server["model"]
    assert second.aggregated.test == pytest.approx(expected(final, test), rel=1e-4)
    own = [expected(final, job.federation.examples(client)) for client in second.clients]
    assert second.aggregated.train == pytest.approx(np.mean(own), rel=1e-4)
    assert recorded.metrics[1]["davies_bouldin"]["aggregated"]["test"] == second.aggregated.test


def test_local_training_separates_the_local_rows() -> None:
    quality = FeatureQuality(clients=3)
    run(job_of("fedavg", training={"epochs": 8}), rounds=1, observers=[quality])
    assert quality.rounds[0].local.train < quality.rounds[0].before.train


def test_clients_of_one_class_have_no_train_score() -> None:
    train, test = digits()
    federation = GeneratedFederation(4, lambda k: train.rows((train.y == k).nonzero().flatten()[:10]), test, 10)
    quality = FeatureQuality()
    recorded = run(job_of("fedavg", federation), rounds=1, observers=[quality])
    assert math.isnan(quality.rounds[0].local.train)
    assert math.isfinite(quality.rounds[0].local.test)
    assert recorded.metrics[0]["davies_bouldin"]["local"]["train"] is None


def test_every_few_rounds_and_the_last() -> None:
    quality = FeatureQuality(clients=1, every=3, test_rows=50)
    run(job_of("fedavg", training={"epochs": 1}), rounds=5, observers=[quality])
    assert [found.round for found in quality.rounds] == [1, 4, 5]


def test_penultimate_features_do_not_depend_on_how_many_rows_there_are() -> None:
    net, x = digits_network(), digits()[1].x
    alone = penultimate_features(net, net.model(), x[:1])
    assert torch.allclose(penultimate_features(net, net.model(), x)[:1], alone, atol=1e-6)


def test_spread_rows_keeps_both_ends() -> None:
    rows = Examples(torch.arange(10.0), torch.arange(10))
    assert spread_rows(rows, 3).y.tolist() == [0, 4, 9]
    assert spread_rows(rows, 10) is rows


def test_a_picture_is_drawn_and_places_are_repeatable(tmp_path: Path) -> None:
    net, test = digits_network(), spread_rows(digits()[1], 30)
    plot_features(feature_map(net, {"before": net.model()}, test), tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    features = penultimate_features(net, net.model(), test.x).numpy()
    assert embed(features, 3).shape == (30, 2)
    assert np.array_equal(embed(features, 3), embed(features, 3))
