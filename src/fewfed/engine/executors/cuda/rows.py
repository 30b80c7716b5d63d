"""Clients' rows on the device. They are gathered into a tensor only when a method reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.data.federation import Federation, SplitFederation
from fewfed.data.variation import Variation

_REMEMBERED = 20_000
"""Clients whose class counts stay on the device."""


class Located(Examples):
    """Rows of a table on the device, by number; the tensors `x` and `y` are made when first read."""

    def __init__(self, x: Tensor, y: Tensor, rows: np.ndarray) -> None:
        object.__setattr__(self, "table_x", x)
        object.__setattr__(self, "table_y", y)
        object.__setattr__(self, "numbers", torch.from_numpy(np.array(rows)))

    table_x: Tensor
    table_y: Tensor
    numbers: Tensor

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def _on_device(self) -> Tensor:
        return self.numbers.to(self.table_x.device, non_blocking=True)

    @cached_property
    def x(self) -> Tensor:
        return self.table_x[self._on_device]

    @cached_property
    def y(self) -> Tensor:
        return self.table_y[self._on_device]


def table_of(data: Examples) -> tuple[Tensor, Tensor]:
    """A table with rows of the same shape and type, without gathering any."""
    return (data.table_x, data.table_y) if isinstance(data, Located) else (data.x, data.y)


class DeviceFederation:
    """A federation whose rows live on a device. One table for all clients where they are cut out of one data set.

    `in_one_table` is false where some clients change their rows: beside their own, the table would be copied for each
    other client of a stack.
    """

    def __init__(self, inner: Federation, device: torch.device, *, in_one_table: bool = True) -> None:
        self._inner = inner
        self._device = device
        self._test = inner.test.to(device)
        self._validation = inner.validation.to(device)
        self._counts: dict[int, Tensor] = {}
        self._table: Examples | None = None
        self._split = None
        if isinstance(inner, SplitFederation) and inner.is_plain and in_one_table:
            self._table = inner.dataset.train.to(device)
            self._split = inner.split

    @property
    def classes(self) -> int:
        return self._inner.classes

    @property
    def test(self) -> Examples:
        return self._test

    @property
    def test_groups(self) -> Mapping[str, Tensor]:
        return self._inner.test_groups

    @property
    def validation(self) -> Examples:
        return self._validation

    @property
    def validation_groups(self) -> Mapping[str, Tensor]:
        return self._inner.validation_groups

    @property
    def variation(self) -> Variation:
        return self._inner.variation

    @property
    def client_groups(self) -> Sequence[str]:
        return self._inner.client_groups

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._inner.shape)

    @property
    def most_rows(self) -> int | None:
        return self._inner.most_rows

    def __len__(self) -> int:
        return len(self._inner)

    def size(self, client: int) -> int:
        return self._inner.size(client)

    def counts(self, client: int) -> Tensor:
        if client not in self._counts:
            if len(self._counts) >= _REMEMBERED:
                self._counts.clear()
            self._counts[client] = self._inner.counts(client).to(self._device, non_blocking=True)
        return self._counts[client]

    def examples(self, client: int) -> Examples:
        if self._table is None or self._split is None:
            return self._inner.examples(client).to(self._device)
        return Located(self._table.x, self._table.y, self._split.rows(client))

    def union(self) -> Examples:
        return self._inner.union().to(self._device)

    def fresh_noise(self, client: int) -> float:
        return self._inner.fresh_noise(client)
