"""Small federations of handwritten digits: clients with few rows of few classes, and some odder ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from fewfed import networks
from fewfed.data.examples import Examples
from fewfed.data.federation import Federation, GeneratedFederation
from fewfed.network import Network

SIZES = (14, 9, 20, 6, 12, 17, 8, 11)
"""Rows of the clients that methods are examined on."""
TEST_ROWS = 120
_TRAIN = 1400


@cache
def digits() -> tuple[Examples, Examples]:
    """1400 training and 397 test rows of 8x8 digits."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = torch.tensor(raw.data, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(raw.target, dtype=torch.long)
    return Examples(x[:_TRAIN], y[:_TRAIN]), Examples(x[_TRAIN:], y[_TRAIN:])


def digits_federation(clients: int = 10, rows: int | Sequence[int] = 12) -> GeneratedFederation:
    """Clients with rows of two or three classes each; `rows` is one size for all or one a client."""
    train, test = digits()
    sizes = [rows] * clients if isinstance(rows, int) else list(rows)

    def make(client: int) -> Examples:
        held = torch.isin(train.y, torch.tensor([client % 10, (3 * client + 1) % 10, (7 * client + 2) % 10]))
        mine = held.nonzero().flatten().roll(-5 * client)[: sizes[client]]
        return train.rows(mine)

    return GeneratedFederation(clients, make, test, classes=10)


def digits_network(seed: int = 3) -> Network:
    """Two convolutions with BatchNorm, cut after the first."""
    return networks.build("digits-cnn", (1, 8, 8), 10, seed)


def plain_network(seed: int = 3) -> Network:
    """Without BatchNorm, for methods that cannot use it."""
    return networks.build("mlp", (1, 8, 8), 10, seed)


def federation() -> Federation:
    """Eight clients. Personal methods are scored once a client and round: a short test part keeps that cheap."""
    whole = digits_federation(len(SIZES), SIZES)
    return GeneratedFederation(len(SIZES), whole.examples, whole.test.rows(torch.arange(TEST_ROWS)), whole.classes)


def odd_clients() -> Federation:
    """Client 0 has one sample, client 1 nine of one class, the others are ordinary."""
    train, test = digits()
    ordinary = digits_federation(5, [1, 9, 12, 11, 10])
    sevens = (train.y == 7).nonzero().flatten()

    def make(client: int) -> Examples:
        return train.rows(sevens[:9]) if client == 1 else ordinary.examples(client)

    return GeneratedFederation(5, make, test.rows(torch.arange(TEST_ROWS)), classes=10)


def with_other_rows(original: Federation, clients: set[int]) -> Federation:
    """The same clients, some of them with rows of somebody else."""
    train, _ = digits()

    def make(client: int) -> Examples:
        return train.rows(torch.arange(700 + client, 760 + client)) if client in clients else original.examples(client)

    return GeneratedFederation(len(original), make, original.test, original.classes)
