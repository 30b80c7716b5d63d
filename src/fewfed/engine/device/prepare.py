"""Turns for the device, made one after another while it works on those before."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.engine.client import context_of
from fewfed.engine.device.drawing import Drawing
from fewfed.engine.device.lane import Turn
from fewfed.engine.device.packed import Packed
from fewfed.engine.device.rows import Located, table_of
from fewfed.engine.device.watch import CannotCapture, of_anybody
from fewfed.engine.job import Failed, Job, Member
from fewfed.method import Context
from fewfed.phase import Clock, Cohort, Phase
from fewfed.plan import Draws
from fewfed.tree import Tree

_MANY_NORMALS = 1 << 13
_NORMALS_AHEAD = 1 << 26
"""From how many normal numbers a turn on threads make them, and the most that may wait for their turns."""


@dataclass(frozen=True)
class Prospect:
    """A member whose turn is known by its size only."""

    index: int
    ctx: Context
    data: Examples
    batch: int
    """Rows of a step."""

    @property
    def steps(self) -> int:
        return self.ctx.steps


class Preparation:
    """Makes turns in this thread. Gaussian noise, where it is much, is made by others: NumPy lets them run beside."""

    def __init__(self, job: Job, device: torch.device) -> None:
        self._job = job
        self._device = device
        self._drawing = Drawing(job.method, pinned=device.type == "cuda")
        self._ahead: dict[int, tuple[Draws, Future[None]]] = {}
        self._bare = False
        self._start_tried = False
        self._common_start: Tree | None = None
        self._threads = _threads(device)
        self._pool: ThreadPoolExecutor | None = None

    def prospects(
        self, phase: Phase, clock: Clock, shared: Tree, members: Sequence[Member]
    ) -> Iterator[Prospect | Failed]:
        """Who will train how long, in the order of the members."""
        self._ahead.clear()
        self._start_tried, self._common_start = False, None
        self._bare = not any(member.personal or member.state for member in members)
        for index, member in enumerate(members):
            ctx = context_of(self._job, phase, clock, shared, member)
            if phase.cohort is not Cohort.SERVER and ctx.size == 0:
                yield Failed(ctx.client, phase.name, "it has no samples: expected at least one")
                continue
            data = self._job.method.data(ctx)
            if len(data) == 0:
                yield Failed(ctx.client, phase.name, "there is nothing to train on: expected at least one row")
                continue
            plan, rows = ctx.plan, len(data)
            if plan.rule != "fill" and (plan.rule == "released" or rows % plan.batch):
                raise CannotCapture("its batches differ in size (batch_rule 'fill' keeps them equal)")
            ctx = dataclasses.replace(ctx, steps=plan.steps(rows, phase.epochs))
            yield Prospect(index, ctx, data, min(plan.batch, rows))

    def expect(self, prospects: Iterable[Prospect]) -> None:
        """Begin with the noise of turns that will be asked for soon."""
        waiting = 0
        for prospect in prospects if self._threads else ():
            count = self._drawing.normals(prospect.ctx, prospect.batch)
            waiting += count
            if count < _MANY_NORMALS or waiting > _NORMALS_AHEAD:
                return
            if prospect.index not in self._ahead:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(self._threads)
                draws = _draws(prospect)
                self._ahead[prospect.index] = (draws, self._pool.submit(draws.make_normals, count))

    def turns(self, prospects: Sequence[Prospect]) -> list[Turn]:
        """Start, rows and draws of every step, of clients with batches of one size."""
        batch = prospects[0].batch
        draws = [self._draws_of(prospect) for prospect in prospects]
        packed = self._drawing.turns(draws, [prospect.ctx for prospect in prospects], batch)
        return [self._turn(prospect, drawn) for prospect, drawn in zip(prospects, packed, strict=True)]

    def _turn(self, prospect: Prospect, draws: Packed) -> Turn:
        ctx, data = prospect.ctx, prospect.data
        phase, clock = ctx.phase, ctx.clock
        if ctx.plan.rule == "fill":
            rows = ctx.plan.filled_batches(clock.round, phase.name, ctx.client, len(data), phase.epochs)
        else:
            rows = torch.stack(ctx.plan.batches(clock.round, phase.name, ctx.client, len(data), phase.epochs))
        if isinstance(data, Located):
            rows = data.numbers[rows]
        return Turn(prospect.index, ctx, self._start(ctx), *table_of(data), rows, draws)

    def _start(self, ctx: Context) -> Tree:
        """Where the client starts; all from one copy, where the method begins without a look at who it is."""
        if not self._start_tried:
            self._start_tried = True
            with contextlib.suppress(Exception):  # It does look; if something else is wrong, the client's turn says so.
                self._common_start = self._begun(of_anybody(ctx, *table_of(ctx.data), bare=self._bare))
        return self._common_start if self._common_start is not None else self._begun(ctx)

    def _begun(self, ctx: Context) -> Tree:
        return tree.to(self._job.method.begin(ctx), self._device)

    def _draws_of(self, prospect: Prospect) -> Draws:
        draws, made = self._ahead.pop(prospect.index, (None, None))
        if draws is None or made is None:
            return _draws(prospect)
        made.result()
        return draws

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _threads(device: torch.device) -> int:
    """Threads for noise: none where the device is the CPU itself and every core has its own process."""
    return max(1, min(6, (os.cpu_count() or 1) - 1)) if device.type == "cuda" else 0


def _draws(prospect: Prospect) -> Draws:
    ctx = prospect.ctx
    return ctx.plan.draws(ctx.clock.round, ctx.phase.name, ctx.client)
