"""A client that is ready to train: where it starts, and the rows and draws of its steps, those of one size together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed.engine.executors.cuda.packed import Packed, Places
from fewfed.method import Context
from fewfed.tree import Tree

UNEVEN = 0
"""Stands for the size of batches that differ in size."""


@dataclass(frozen=True)
class Steps:
    """Steps of one size: one recorded step can take them all."""

    rows: Tensor
    """(steps, batch) row numbers, on the host."""
    drawn: Packed

    @property
    def size(self) -> tuple[int, Places]:
        return self.rows.shape[1], self.drawn.places

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class ReadyTurn:
    """A client's turn, prepared."""

    index: int
    ctx: Context
    work: Tree
    x: Tensor
    """The table its rows are numbered in."""
    y: Tensor
    batch: int
    """Rows of every step, or `UNEVEN`."""
    parts: tuple[Steps, ...]
    order: tuple[int, ...]
    """For every step, which part it is the next one of."""
    varied: bool = False
    """Whether the table was made for this turn alone, with a row for every use of one."""

    def loaded(self) -> ReadyTurn:
        """The turn once its rows are copied to where steps read them: a table of its own is given back, since a phase
        keeps all its turns to its end. To be called on the stream that copies."""
        if not self.varied:
            return self
        if self.x.is_cuda:
            for rows in (self.x, self.y):
                rows.record_stream(torch.cuda.current_stream(rows.device))
        return dataclasses.replace(self, x=torch.empty_like(self.x[:0]), y=torch.empty_like(self.y[:0]))

    @property
    def steps(self) -> int:
        return len(self.order)


def by_size(rows: Sequence[Tensor], drawn: Sequence[Tree], pinned: bool) -> tuple[tuple[Steps, ...], tuple[int, ...]]:
    """Parts and order of steps whose batches or draws differ in size."""
    numbers: dict[tuple[int, Places], int] = {}
    order = tuple(
        numbers.setdefault((len(batch), Places.of(draws)), len(numbers))
        for batch, draws in zip(rows, drawn, strict=True)
    )
    parts = []
    for number in range(len(numbers)):
        members = [step for step, part in enumerate(order) if part == number]
        picked = torch.stack([rows[step] for step in members])
        parts.append(Steps(picked, Packed.of([drawn[step] for step in members], pinned)))
    return tuple(parts), order
