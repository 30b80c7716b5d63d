"""A site's own rows as the federation it sees: it knows how many sites there are, and of the others nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fewfed.data.examples import Dataset, Examples
from fewfed.data.splits import Split
from fewfed.data.validation import hold_back
from fewfed.data.variation import NONE, Variation
from fewfed.errors import DataError


class OwnRows:
    """A `Federation` of which only one client's rows are here."""

    def __init__(
        self,
        dataset: Dataset,
        sites: Sequence[str],
        number: int,
        *,
        validation: Examples | None = None,
        variation: Variation = NONE,
    ) -> None:
        variation.check(dataset.shape)
        self._rows, self._number, self._sites = dataset.train, number, tuple(sites)
        self._places = np.arange(len(dataset.train)) if dataset.places is None else dataset.places
        self.variation = variation.on(dataset.train.x)
        self.classes = dataset.classes if dataset.task == "classification" else 0
        self.shape = dataset.shape
        self.test = dataset.test
        self.validation = Examples(dataset.train.x[:0], dataset.train.y[:0]) if validation is None else validation
        # Whose rows these are is known to everybody: the coordinator puts the site's name on its scores.
        self.test_groups: Mapping[str, Tensor] = {}
        self.validation_groups: Mapping[str, Tensor] = {}
        self.client_groups = self._sites
        self.most_rows: int | None = None

    def __len__(self) -> int:
        return len(self._sites)

    def size(self, client: int) -> int:
        return len(self.examples(client))

    def examples(self, client: int) -> Examples:
        if client != self._number:
            raise IndexError(f"the rows of client {client} are elsewhere: here are those of client {self._number}")
        return self._rows

    def counts(self, client: int) -> Tensor:
        if not self.classes:
            return torch.zeros(0, dtype=torch.long)
        return torch.bincount(self.examples(client).y, minlength=self.classes)

    def places(self, client: int) -> np.ndarray:
        """The number of each row in the site's file. Of other sites none is here, and none is asked for."""
        return self._places if client == self._number else np.empty(0, np.int64)

    def union(self) -> Examples:
        raise DataError("the rows of all sites are in no one place: expected a method that leaves them where they are")

    def fresh_noise(self, client: int) -> float:  # noqa: ARG002
        return 0.0


def with_classes(dataset: Dataset, classes: Sequence[str]) -> Dataset:
    """The data set with its classes numbered as everybody numbers them."""
    if dataset.task != "classification":
        if dataset.classes != len(classes):
            raise DataError(
                f"its masks have {dataset.classes} classes: expected the federation's {len(classes)} "
                "(option classes says how many there are where not all occur)"
            )
        return dataset
    places = {name: number for number, name in enumerate(classes)}
    own = dataset.split_names
    present = torch.unique(torch.cat([dataset.train.y, dataset.test.y])).tolist()
    for number in present:
        if own[number] not in places:
            known = ", ".join(list(classes)[:20])
            raise DataError(f"its rows have a class '{own[number]:.60}' that the federation lacks: expected {known}")
    renumbered = torch.tensor([places.get(name, -1) for name in own], dtype=torch.long)
    train, test = (Examples(part.x, renumbered[part.y.long()]) for part in (dataset.train, dataset.test))
    return dataclasses.replace(dataset, train=train, test=test, classes=len(classes), class_names=tuple(classes))


def parted(dataset: Dataset, fraction: float, seed: int) -> tuple[Dataset, Examples | None]:
    """The data set without the rows that the site holds back for validation, and those; None where it holds back none.

    The draw is the site's own: where all sites are in one place, other rows are held back.
    """
    if not fraction or len(dataset.train) < 2:
        return dataset, None
    kept, held = hold_back(Split.of("site", [np.arange(len(dataset.train))]), fraction, seed)
    train, rest = (dataset.train.rows(torch.tensor(part.rows(0))) for part in (kept, held))
    places = None if dataset.places is None else dataset.places[kept.rows(0)]
    return dataclasses.replace(dataset, train=train, places=places), rest
