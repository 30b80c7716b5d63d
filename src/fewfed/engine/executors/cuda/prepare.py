"""Prepares turns on the host while the device works on earlier ones."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.engine.executors.cuda.drawing import Drawing
from fewfed.engine.executors.cuda.packed import DrawsDiffer
from fewfed.engine.executors.cuda.ready import UNEVEN, ReadyTurn, Steps, by_size
from fewfed.engine.executors.cuda.rows import Located, table_of
from fewfed.engine.executors.cuda.watch import of_anybody
from fewfed.engine.gate import LeftOut
from fewfed.engine.job import Job
from fewfed.engine.outcomes import Failed
from fewfed.engine.turn import CannotTrain, Member, context_of, failed, rows_to_train_on
from fewfed.engine.varied import Rows, may_vary
from fewfed.method import Context
from fewfed.phase import Clock, Phase
from fewfed.plan import Random
from fewfed.tree import Tree

_MANY_NORMALS = 1 << 13
_NORMALS_AHEAD = 1 << 26
"""Threads draw normal numbers for turns that need at least so many, and at most so many in advance."""


@dataclass(frozen=True)
class Prospect:
    """A member whose turn is not prepared yet: only its size is known."""

    index: int
    ctx: Context
    data: Examples
    batch: int
    """Rows of every step, or `UNEVEN`."""

    @property
    def steps(self) -> int:
        return self.ctx.steps


class Preparation:
    """Prepares turns in this thread. Large amounts of Gaussian noise are drawn by other threads, in parallel."""

    def __init__(self, job: Job, device: torch.device) -> None:
        self._job = job
        self._device = device
        self._drawing = Drawing(pinned=device.type == "cuda")
        self._ahead: dict[int, tuple[Random, Future[None]]] = {}
        self._uneven: set[str] = set()
        """Phases whose draws differ in size from step to step."""
        self._bare = False
        self._start_tried = False
        self._common_start: Tree | None = None
        self._threads = _threads(device)
        self._pool: ThreadPoolExecutor | None = None

    def prospects(
        self, phase: Phase, clock: Clock, shared: Tree, members: Sequence[Member]
    ) -> Iterator[Prospect | Failed]:
        """Which members will train, and for how many steps, in order."""
        self._ahead.clear()
        self._start_tried, self._common_start = False, None
        own = ({"personal": member.personal, "state": member.state} for member in members)
        self._bare = not any(next(tree.leaves(each), None) for each in own)
        for index, member in enumerate(members):
            ctx = context_of(self._job, phase, clock, shared, member)
            try:
                data = rows_to_train_on(self._job, ctx, member.book)
            except (CannotTrain, LeftOut) as error:
                yield failed(ctx.client, phase, error)
                continue
            ctx = dataclasses.replace(ctx, steps=ctx.plan.steps(len(data), phase.epochs))
            even = phase.name not in self._uneven and ctx.plan.has_even_batches(len(data))
            yield Prospect(index, ctx, data, min(ctx.plan.batch, len(data)) if even else UNEVEN)

    def expect(self, prospects: Iterable[Prospect]) -> None:
        """Start to draw the noise of turns that will be needed soon."""
        waiting = 0
        for prospect in prospects if self._threads else ():
            count = self._drawing.normals(prospect.ctx, prospect.batch)
            waiting += count
            if count < _MANY_NORMALS or waiting > _NORMALS_AHEAD:
                return
            if prospect.index not in self._ahead:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(self._threads)
                random = _source(prospect)
                self._ahead[prospect.index] = (random, self._pool.submit(random.make_normals, count))

    def turns(self, prospects: Sequence[Prospect]) -> list[ReadyTurn]:
        """Start, rows and draws of every step, of clients with batches of one size, or of one with several."""
        batch = prospects[0].batch
        if batch == UNEVEN:
            return [self._turn(prospect, *self._parts_by_size(prospect)) for prospect in prospects]
        sources = [self._source_of(prospect) for prospect in prospects]
        try:
            packed = self._drawing.turns(sources, [prospect.ctx for prospect in prospects], batch)
        except DrawsDiffer:
            self._uneven.add(prospects[0].ctx.phase.name)
            if len(prospects) > 1:
                raise
            return self.turns([dataclasses.replace(prospects[0], batch=UNEVEN)])
        return [
            self._turn(prospect, (Steps(_filled(prospect), drawn),), (0,) * prospect.steps)
            for prospect, drawn in zip(prospects, packed, strict=True)
        ]

    def _turn(self, prospect: Prospect, parts: tuple[Steps, ...], order: tuple[int, ...]) -> ReadyTurn:
        table = table_of(prospect.data)
        start = self._start(prospect.ctx)
        turn = ReadyTurn(prospect.index, prospect.ctx, start, *table, prospect.batch, parts, order)
        return self._varied(prospect, turn) if may_vary(self._job, prospect.ctx) else turn

    def _varied(self, prospect: Prospect, turn: ReadyTurn) -> ReadyTurn:
        """The turn with a table of the rows of every step, as that step sees them."""
        source = Rows(self._job, prospect.ctx, prospect.data)
        if not source.vary:
            return turn
        batches = _batches(prospect)
        x, y = source.of_steps(batches)
        places = torch.split(torch.arange(len(x)), [len(rows) for rows in batches])
        parts = []
        for number, part in enumerate(turn.parts):
            mine = [places[step] for step, other in enumerate(turn.order) if other == number]
            parts.append(Steps(torch.stack(mine), part.drawn))
        return dataclasses.replace(turn, x=x, y=y, parts=tuple(parts), varied=True)

    def _parts_by_size(self, prospect: Prospect) -> tuple[tuple[Steps, ...], tuple[int, ...]]:
        ctx, random = prospect.ctx, _source(prospect)
        rows = [_located(prospect, batch) for batch in _batches(prospect)]
        drawn = [ctx.phase.does.draw(random, ctx, len(batch)) for batch in rows]
        return by_size(rows, drawn, pinned=self._device.type == "cuda")

    def _start(self, ctx: Context) -> Tree:
        """The work tree a client starts from; one copy for all if `begin` does not look at the client."""
        if not self._start_tried:
            self._start_tried = True
            with contextlib.suppress(Exception):  # It does look; if something else is wrong, the client's turn says so.
                self._common_start = self._begun(of_anybody(ctx, *table_of(ctx.data), bare=self._bare))
        return self._common_start if self._common_start is not None else self._begun(ctx)

    def _begun(self, ctx: Context) -> Tree:
        return tree.to(ctx.phase.does.begin(ctx), self._device)

    def _source_of(self, prospect: Prospect) -> Random:
        random, made = self._ahead.pop(prospect.index, (None, None))
        if random is None or made is None:
            return _source(prospect)
        made.result()
        return random

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _threads(device: torch.device) -> int:
    """Threads that draw noise: none where the device is a CPU, whose cores all have a process already."""
    return max(1, min(6, (os.cpu_count() or 1) - 1)) if device.type == "cuda" else 0


def _filled(prospect: Prospect) -> Tensor:
    """(steps, batch) row numbers of batches of one size."""
    if prospect.ctx.plan.rule == "fill":
        ctx, phase = prospect.ctx, prospect.ctx.phase
        rows = ctx.plan.filled_batches(ctx.clock.round, phase.name, ctx.client, len(prospect.data), phase.epochs)
    else:
        rows = torch.stack(_batches(prospect))
    return _located(prospect, rows)


def _batches(prospect: Prospect) -> list[Tensor]:
    ctx, phase = prospect.ctx, prospect.ctx.phase
    return ctx.plan.batches(ctx.clock.round, phase.name, ctx.client, len(prospect.data), phase.epochs)


def _located(prospect: Prospect, rows: Tensor) -> Tensor:
    """Numbers of a client's rows as numbers in the table of all."""
    return prospect.data.numbers[rows] if isinstance(prospect.data, Located) else rows


def _source(prospect: Prospect) -> Random:
    ctx = prospect.ctx
    return ctx.plan.random(ctx.clock.round, ctx.phase.name, ctx.client)
