from __future__ import annotations

import numpy as np
import pytest
import torch

from fewfed.data.examples import Dataset, Examples
from fewfed.data.federation import Federation, GeneratedFederation, SplitFederation
from fewfed.data.splits import Split, make_split
from fewfed.errors import ConfigError


def dataset(rows: int = 60, width: int = 4) -> Dataset:
    """Every input of row r holds the number r, so a row can be told from its values."""
    x = torch.arange(rows, dtype=torch.float32)[:, None].expand(rows, width).contiguous()
    return Dataset("counting", Examples(x, torch.arange(rows) % 3), Examples(x[:5], torch.arange(5) % 3), classes=3)


def split_of(data: Dataset, clients: int = 6) -> Split:
    return make_split("dir:0.5", data.train.y.numpy(), data.classes, clients, seed=0)


def test_clients_hold_the_rows_of_the_split() -> None:
    data = dataset()
    split = split_of(data)
    federation: Federation = SplitFederation(data, split)
    assert len(federation) == 6
    assert federation.shape == (4,)
    matrix = split.counts(data.train.y.numpy(), 3)
    for client in range(6):
        held = federation.examples(client)
        assert held.x[:, 0].tolist() == split.rows(client).tolist()
        assert torch.equal(held.y, held.x[:, 0].long() % 3)
        assert federation.size(client) == len(held)
        assert federation.counts(client).dtype == torch.int64
        assert federation.counts(client).tolist() == matrix[client].tolist()
    assert sorted(federation.union().x[:, 0].tolist()) == list(range(60))
    assert federation.test is data.test


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_union_is_the_clients_in_order(noise: float) -> None:
    data = dataset()
    federation = SplitFederation(data, split_of(data), noise=noise, seed=2)
    joined = torch.cat([federation.examples(client).x for client in range(len(federation))])
    assert torch.equal(federation.union().x, joined)


def test_graded_noise_rises_with_the_client_and_is_the_same_each_time() -> None:
    data = dataset(rows=40, width=5000)
    split = make_split("iid", data.train.y.numpy(), 3, 4, seed=0)
    noisy, clean = SplitFederation(data, split, noise=0.3, seed=1), SplitFederation(data, split)
    for client in range(4):
        added = noisy.examples(client).x - clean.examples(client).x
        assert float(added.std()) == pytest.approx(0.3 * client / 3, rel=0.03)
        assert torch.equal(noisy.examples(client).x, noisy.examples(client).x)
    assert torch.equal(noisy.examples(0).x, clean.examples(0).x)
    assert torch.equal(noisy.test.x, data.test.x)
    other = SplitFederation(data, split, noise=0.3, seed=2)
    assert not torch.equal(other.examples(3).x, noisy.examples(3).x)


def test_uniform_noise_has_one_level_and_differs_between_clients() -> None:
    data = dataset(rows=40, width=5000)
    split = make_split("iid", data.train.y.numpy(), 3, 4, seed=0)
    noisy, clean = SplitFederation(data, split, noise=0.2, noise_kind="uniform"), SplitFederation(data, split)
    added = [noisy.examples(client).x - clean.examples(client).x for client in range(4)]
    assert [float(noise.std()) for noise in added] == pytest.approx([0.2] * 4, rel=0.03)
    assert abs(float(torch.corrcoef(torch.stack([added[0][0], added[1][0]]))[0, 1])) < 0.1


def test_graded_noise_on_a_single_client_is_none() -> None:
    data = dataset()
    federation = SplitFederation(data, make_split("iid", data.train.y.numpy(), 3, 1, seed=0), noise=1.0)
    assert federation.noise_level(0) == 0


def test_impossible_requests_are_explained() -> None:
    data = dataset()
    with pytest.raises(ConfigError, match="60 training rows"):
        SplitFederation(data, Split.of("other", [np.array([60])]))
    with pytest.raises(ConfigError, match="noise"):
        SplitFederation(data, split_of(data), noise=-0.1)
    with pytest.raises(ConfigError, match="at least 1"):
        GeneratedFederation(0, lambda client: data.train, data.test, 3)


def test_generated_clients_are_made_when_asked_for() -> None:
    asked: list[int] = []

    def make(client: int) -> Examples:
        asked.append(client)
        rows = 2 + client % 3
        return Examples(torch.full((rows, 4), float(client)), torch.full((rows,), client % 3))

    federation: Federation = GeneratedFederation(1_000_000, make, dataset().test, classes=3)
    assert len(federation) == 1_000_000
    assert federation.shape == (4,)
    assert asked == []
    assert federation.size(999_998) == 4
    assert federation.counts(999_998).tolist() == [0, 0, 4]
    assert float(federation.examples(7).x[0, 0]) == 7
    assert set(asked) == {999_998, 7}
    with pytest.raises(IndexError):
        federation.examples(1_000_000)
    small = GeneratedFederation(3, make, dataset().test, classes=3)
    assert small.union().y.tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]


def test_noise_on_the_test_part_is_a_copy_of_it_under_every_level() -> None:
    data = dataset(rows=60, width=400)
    split = split_of(data)
    noisy = SplitFederation(data, split, noise=0.3, noise_test=True, seed=1)
    rows, clients = len(data.test), len(split)
    assert len(noisy.test) == rows * clients
    assert torch.equal(noisy.test.y, data.test.y.repeat(clients))
    for client in range(clients):
        added = noisy.test.x[client * rows : (client + 1) * rows] - data.test.x
        level = 0.3 * client / (clients - 1)
        assert float(added.std()) == pytest.approx(level, rel=0.1, abs=1e-7)
    copies = [noisy.test.x[c * rows : (c + 1) * rows] - data.test.x for c in (clients - 2, clients - 1)]
    assert abs(float(torch.corrcoef(torch.stack([copy.flatten() for copy in copies]))[0, 1])) < 0.1
    same = SplitFederation(data, split, noise=0.3, noise_kind="uniform", noise_test=True, seed=1)
    assert len(same.test) == rows
    assert float((same.test.x - data.test.x).std()) == pytest.approx(0.3, rel=0.1)
    assert torch.equal(SplitFederation(data, split, noise=0.0, noise_test=True).test.x, data.test.x)


def test_noise_on_the_test_part_of_very_many_clients_is_refused() -> None:
    data = dataset(rows=300)
    many = make_split("iid", data.train.y.numpy(), data.classes, 101, seed=0)
    with pytest.raises(ConfigError, match="for each of 101 clients: expected at most 100"):
        SplitFederation(data, many, noise=0.1, noise_test=True)
