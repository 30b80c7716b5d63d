"""The federation as the coordinator sees it: names, and how many rows each site tells of. It holds no row at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.data.federation import HeldOut
from fewfed.data.variation import NONE, Variation
from fewfed.deploy.messages import Offer, Terms
from fewfed.errors import DataError
from fewfed.task import Task

MOST_ROWS = 1_000_000


class KnownSites:
    """A `Federation` whose rows are elsewhere."""

    def __init__(self, offer: Offer, terms: Mapping[str, Terms], task: Task, limit: int = MOST_ROWS) -> None:
        """`terms`: of those who have joined, also later; `limit`: rows that a site may have at most."""
        self._names, self._terms, self._limit = offer.sites, terms, limit
        self.classes = task.classes
        self.shape = offer.shape
        self._task = task
        self.test = Examples(torch.zeros(0, *offer.shape), task.blank_labels(0, offer.shape))
        self.test_groups: Mapping[str, Tensor] = {}
        self.validation_groups: Mapping[str, Tensor] = {}
        self.variation: Variation = NONE
        self.client_groups: Sequence[str] = self._names

    @property
    def validation(self) -> Examples:
        """As many rows as those who have joined hold back. Only their number is looked at: they take no memory."""
        rows = sum(each.validation_rows for each in self._terms.values())
        if not rows:
            return self.test
        return Examples(torch.zeros(1).expand(rows, *self.shape), self._task.blank_labels(1, self.shape))

    @property
    def most_rows(self) -> int | None:
        """Rows of the largest site that has joined; of one that does not tell, the most that any may have."""
        rows = [self._limit if each.rows is None else each.rows for each in self._terms.values()]
        return max(rows, default=self._limit)

    def __len__(self) -> int:
        return len(self._names)

    def size(self, client: int) -> int:
        """As the site tells; 0 where it does not."""
        terms = self._terms.get(self._names[client])
        return 0 if terms is None or terms.rows is None else terms.rows

    def most_scored(self, site: str, on: HeldOut) -> int:
        """Rows that a site can have scored a model on: as many as it tells of, or any may have where it tells none."""
        terms = self._terms.get(site)
        if terms is None or terms.rows is None:
            return self._limit
        return terms.test_rows if on == "test" else terms.validation_rows

    def examples(self, client: int) -> Examples:
        raise DataError(f"the rows of site '{self._names[client]}' are at the site, and nobody else has them")

    def counts(self, client: int) -> Tensor:  # noqa: ARG002
        return torch.zeros(self.classes, dtype=torch.long)

    def union(self) -> Examples:
        raise DataError("the rows of all sites are in no one place: expected a method that leaves them where they are")

    def fresh_noise(self, client: int) -> float:  # noqa: ARG002
        return 0.0
