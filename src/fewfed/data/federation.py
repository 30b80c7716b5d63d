"""Clients and their rows: cut out of a data set by a split, or made on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from fewfed.data.examples import Dataset, Examples
from fewfed.data.splits import Split
from fewfed.data.variation import NONE, Variation
from fewfed.errors import ConfigError

MOST_GROUPS = 50
"""More groups of test rows than this are not scored one by one: every round would pay for a table nobody reads."""


HeldOut = Literal["test", "validation"]
"""Rows that nobody trains on and models are scored on."""


class Federation(Protocol):
    """Everything a run knows about its clients' data."""

    @property
    def classes(self) -> int: ...

    @property
    def test(self) -> Examples: ...

    @property
    def test_groups(self) -> Mapping[str, Tensor]:
        """Named groups of test rows that are scored by themselves: which rows, as booleans."""
        ...

    @property
    def validation(self) -> Examples:
        """What clients hold back of their own rows, in client order; none where nobody asked for it."""
        ...

    @property
    def validation_groups(self) -> Mapping[str, Tensor]:
        """Groups of validation rows, called as those of the test rows are."""
        ...

    @property
    def variation(self) -> Variation:
        """How rows differ each time they are trained on."""
        ...

    @property
    def client_groups(self) -> Sequence[str]:
        """The name of each client's group, where clients are groups of the test rows too; else empty."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        ...

    @property
    def most_rows(self) -> int | None:
        """Rows of the largest client; None where nobody knows without making all of them."""
        ...

    def __len__(self) -> int:
        """Number of clients."""
        ...

    def size(self, client: int) -> int: ...

    def examples(self, client: int) -> Examples: ...

    def counts(self, client: int) -> Tensor:
        """Rows of each class, int64."""
        ...

    def union(self) -> Examples:
        """The rows of all clients, in client order."""
        ...

    def fresh_noise(self, client: int) -> float:
        """Deviation of the noise that is drawn anew each time a row is looked at, and is not in `examples`; it never
        falls with the number of the client."""
        ...


MOST_TEST_COPIES = 100
TEST_NOISE = 1 << 31
VALIDATION_NOISE = TEST_NOISE + 1
"""What sets the noise on the test part, and on validation rows, apart from that of any client's training rows."""


class SplitFederation:
    """Clients cut out of a data set; their tensors are gathered when asked for, never held twice.

    `noise` adds Gaussian noise to the training inputs, in the units of the data: `graded` rises from none on client 0
    to standard deviation `noise` on the last client (fedfa-sem-flair 3.6), `uniform` is the same everywhere. A client's
    noise is the same every time, or with `noise_fresh` new each time a row is looked at; the engine then draws it, and
    `examples` are without. The test rows stay clean, or with `noise_test` come once under every client's level
    (NIID-Bench). `validation` are the rows that clients hold back, under their own noise. `variation` is what is new
    about rows each time they are trained on.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: Split,
        *,
        validation: Split | None = None,
        noise: float = 0.0,
        noise_kind: Literal["graded", "uniform"] = "graded",
        noise_test: bool = False,
        noise_fresh: bool = False,
        variation: Variation = NONE,
        seed: int = 0,
    ) -> None:
        if not 0 <= noise < float("inf"):
            raise ConfigError(f"noise = {noise}: expected a standard deviation of 0 or more")
        if noise_kind not in ("graded", "uniform"):
            raise ConfigError(f"noise_kind = '{noise_kind}': expected 'graded' or 'uniform'")
        if seed < 0:
            raise ConfigError(f"seed = {seed}: expected 0 or more")
        if len(split.order) and int(split.order.max()) >= len(dataset.train):
            raise ConfigError(
                f"split '{split.name}' names row {int(split.order.max())} but data '{dataset.name}' has "
                f"{len(dataset.train)} training rows: expected a split made from this data"
            )
        variation.check(dataset.shape)
        self.dataset = dataset
        self.split = split
        self.variation = variation.on(dataset.train.x)
        self.classes = dataset.classes if dataset.task == "classification" else 0
        self.test = dataset.test
        self.test_groups = _test_groups(dataset, split)
        self.client_groups = _client_groups(dataset, split)
        self.shape = dataset.shape
        self.most_rows: int | None = int(split.sizes.max(initial=0))
        self._noise = noise
        self._noise_kind = noise_kind
        self._noise_fresh = noise_fresh
        self._seed = seed
        held_back = Split.of(split.name, [np.empty(0, np.int64)] * len(split)) if validation is None else validation
        if len(held_back) != len(split):
            raise ConfigError(f"validation rows of {len(held_back)} clients for {len(split)}: expected as many")
        self.held_back = held_back
        self.validation = self._held_back(held_back)
        self.validation_groups = _validation_groups(dataset, split, held_back)
        if noise_test and noise > 0:
            self._add_noise_to_test()

    def _add_noise_to_test(self) -> None:
        levels = (
            [self.noise_level(client) for client in range(len(self))] if self._noise_kind == "graded" else [self._noise]
        )
        if len(levels) > MOST_TEST_COPIES:
            raise ConfigError(
                f"noise_test makes a copy of the test part for each of {len(levels)} clients: expected at most "
                f"{MOST_TEST_COPIES}, or noise_kind = 'uniform'"
            )
        clean = self.test
        seeds = [_noise_seed(self._seed, TEST_NOISE, number) for number in range(len(levels))]
        self.test = _joined([_noisy(clean, level, seed) for level, seed in zip(levels, seeds, strict=True)])
        self.test_groups = {name: inside.repeat(len(levels)) for name, inside in self.test_groups.items()}

    def _held_back(self, split: Split) -> Examples:
        if self._noise == 0 or not len(split.order):
            return self.dataset.train.rows(torch.tensor(split.order))
        clean = [self.dataset.train.rows(torch.tensor(split.rows(client))) for client in range(len(split))]
        return _joined(
            [
                _noisy(rows, self.noise_level(client), _noise_seed(self._seed, VALIDATION_NOISE, client))
                for client, rows in enumerate(clean)
            ]
        )

    def __len__(self) -> int:
        return len(self.split)

    def size(self, client: int) -> int:
        return len(self.split.rows(client))

    def examples(self, client: int) -> Examples:
        clean = self.dataset.train.rows(self._rows(client))
        if self._noise_fresh:
            return clean
        return _noisy(clean, self.noise_level(client), _noise_seed(self._seed, client))

    def counts(self, client: int) -> Tensor:
        if not self.classes:
            return torch.zeros(0, dtype=torch.long)
        return torch.bincount(self.dataset.train.y[self._rows(client)], minlength=self.classes)

    def places(self, client: int) -> np.ndarray:
        """What a site calls each of the client's rows: its number in the file, or in data without one its number among
        all the client's rows, in the order of the data. Rows that are held back count too."""
        rows = self.split.rows(client)
        if self.dataset.places is not None:
            found: np.ndarray = self.dataset.places[rows]
            return found
        return np.searchsorted(np.sort(np.concatenate([rows, self.held_back.rows(client)])), rows)

    def union(self) -> Examples:
        if self.is_plain:
            return self.dataset.train.rows(torch.tensor(self.split.order))
        return _joined([self.examples(client) for client in range(len(self))])

    @property
    def is_plain(self) -> bool:
        """Whether clients' rows are those of the data set as they are."""
        return self._noise == 0 or self._noise_fresh

    def fresh_noise(self, client: int) -> float:
        return self.noise_level(client) if self._noise_fresh else 0.0

    def noise_level(self, client: int) -> float:
        """Standard deviation of the noise on a client's inputs."""
        if self._noise_kind == "uniform":
            return self._noise
        return self._noise * client / max(1, len(self) - 1)

    def _rows(self, client: int) -> Tensor:
        return torch.tensor(self.split.rows(client))


class GeneratedFederation:
    """Clients whose rows `make(client)` produces when asked; only the last are kept, so their number costs no memory.

    `make` must be a pure function of the client: it is called again each time.
    """

    def __init__(
        self,
        clients: int,
        make: Callable[[int], Examples],
        test: Examples,
        classes: int,
        most_rows: int | None = None,
        validation: Examples | None = None,
        variation: Variation = NONE,
    ) -> None:
        if clients < 1:
            raise ConfigError(f"clients = {clients}: expected at least 1")
        self.test = test
        self.classes = classes
        self.test_groups: Mapping[str, Tensor] = {}
        self.validation = Examples(test.x[:0], test.y[:0]) if validation is None else validation
        self.validation_groups: Mapping[str, Tensor] = {}
        self.client_groups: Sequence[str] = ()
        self.shape = tuple(test.x.shape[1:])
        variation.check(self.shape)
        self.variation = variation
        self.most_rows = most_rows
        self._clients = clients
        self._make = make
        self._last: tuple[int, Examples] | None = None

    def __len__(self) -> int:
        return self._clients

    def size(self, client: int) -> int:
        return len(self.examples(client))

    def examples(self, client: int) -> Examples:
        if not 0 <= client < self._clients:
            raise IndexError(f"client {client} of a federation with clients 0 to {self._clients - 1}")
        if self._last is None or self._last[0] != client:
            self._last = (client, self._make(client))
        return self._last[1]

    def counts(self, client: int) -> Tensor:
        if not self.classes:
            return torch.zeros(0, dtype=torch.long)
        return torch.bincount(self.examples(client).y, minlength=self.classes)

    def union(self) -> Examples:
        """The rows of all clients, in client order; these do take memory for every client."""
        return _joined([self.examples(client) for client in range(self._clients)])

    def fresh_noise(self, client: int) -> float:  # noqa: ARG002
        return 0.0


def _test_groups(dataset: Dataset, split: Split) -> dict[str, Tensor]:
    """The test rows by the groups the clients are, or else by the first grouping there is."""
    grouping = _grouping(dataset, split)
    return _named_groups(dataset, grouping, dataset.test_groups[grouping]) if grouping else {}


def _validation_groups(dataset: Dataset, split: Split, held_back: Split) -> dict[str, Tensor]:
    """The validation rows by the same grouping."""
    grouping = _grouping(dataset, split)
    if grouping not in dataset.groups:
        return {}
    return _named_groups(dataset, grouping, dataset.groups[grouping][held_back.order])


def _grouping(dataset: Dataset, split: Split) -> str:
    known = dataset.test_groups
    return split.name if split.name in known else next(iter(known), "")


def _named_groups(dataset: Dataset, grouping: str, ids: np.ndarray) -> dict[str, Tensor]:
    present = np.unique(ids)
    if len(present) > MOST_GROUPS:
        return {}
    return {dataset.group_name(grouping, int(one)): torch.from_numpy(ids == one) for one in present}


def _client_groups(dataset: Dataset, split: Split) -> tuple[str, ...]:
    if split.name not in dataset.groups or split.name not in dataset.test_groups:
        return ()
    owned = [np.unique(dataset.groups[split.name][split.rows(client)]) for client in range(len(split))]
    if any(len(ids) != 1 for ids in owned):
        return ()
    return tuple(dataset.group_name(split.name, int(ids[0])) for ids in owned)


def _joined(parts: list[Examples]) -> Examples:
    return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def _noisy(clean: Examples, deviation: float, seed: int) -> Examples:
    if deviation == 0:
        return clean
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(clean.x.shape, generator=generator, dtype=clean.x.dtype)
    return Examples(clean.x + deviation * noise.to(clean.x.device), clean.y)


def _noise_seed(*key: int) -> int:
    return int(np.random.SeedSequence(key).generate_state(1, np.uint32)[0])
