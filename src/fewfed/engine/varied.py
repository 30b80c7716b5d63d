"""A client's rows as its steps see them, and as everything else in its turn does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.data.federation import Federation
from fewfed.engine.job import PSEUDO_CLIENT, Job
from fewfed.errors import ConfigError
from fewfed.method import Context
from fewfed.phase import Cohort


class Rows:
    """The rows of a turn, gathered by number; what is to be new each time is drawn from the plan, step by step."""

    def __init__(self, job: Job, ctx: Context, data: Examples) -> None:
        self._data, self._shape = data, ctx.shape
        self._variation = job.federation.variation
        self._levels = _fresh_levels(job.federation, ctx)
        self._random = ctx.plan.row_random(ctx.clock.round, ctx.phase.name, ctx.client)
        # What a server trains on, or a method makes of its rows (features, say), are no rows of the data.
        theirs = ctx.phase.trains_on_clients_rows and tuple(data.x.shape[1:]) == ctx.shape
        self.vary = theirs and (bool(self._variation) or self._levels is not None)
        """Whether a row differs from one use to the next."""
        if self.vary and self._levels is not None and len(data) < len(self._levels):
            raise ConfigError("noise_fresh needs all rows of a client, of which the method leaves some out: set it off")

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and labels of one step. To be called once a step, in the order of the steps."""
        return self.of_steps([rows])

    def of_steps(self, steps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Inputs and labels of steps that follow each other, one after another: the same as each by itself."""
        rows = steps[0] if len(steps) == 1 else torch.cat(list(steps))
        x, y = self._data.x[rows], self._data.y[rows]
        if self.vary and self._variation:
            drawn = [self._variation.draw(self._random, len(each)) for each in steps]
            x, y = self._variation.apply(x, y, {name: torch.cat([each[name] for each in drawn]) for name in drawn[0]})
        if self.vary and self._levels is not None:
            noise = torch.cat([self._noise(each, self._levels) for each in steps])
            x = x + noise.to(x.device, x.dtype)
        return x, y

    def _noise(self, rows: Tensor, own: Tensor) -> Tensor:
        # Rows that a method adds to a client's own come with the noise of whoever sent them.
        known = torch.cat([own, torch.zeros(len(self._data) - len(own))])
        levels = known[rows].view(-1, *[1] * len(self._shape))
        return levels * self._random.normal(len(rows), *self._shape)


def may_vary(job: Job, ctx: Context) -> bool:
    """Whether rows of this turn may differ from one use to the next. Gathers none."""
    return bool(job.federation.variation) or _fresh_levels(job.federation, ctx) is not None


def seen(job: Job, ctx: Context) -> Context:
    """The context with the noise of this turn on its rows, where noise is fresh: for all that takes no step."""
    levels = _fresh_levels(job.federation, ctx)
    if levels is None:
        return ctx
    random = ctx.plan.row_random(ctx.clock.round, ctx.phase.name, ctx.client, seen=True)
    x, y = ctx.data.x, ctx.data.y
    noise = levels.view(-1, *[1] * len(ctx.shape)) * random.normal(len(x), *ctx.shape)
    return dataclasses.replace(ctx, data=Examples(x + noise.to(x.device, x.dtype), y))


def unseen(job: Job, ctx: Context) -> Context:
    """The context before `seen`."""
    if _fresh_levels(job.federation, ctx) is None:
        return ctx
    data = job.federation.union() if ctx.client == PSEUDO_CLIENT else job.rows_of(ctx.client)
    return dataclasses.replace(ctx, data=data)


def _fresh_levels(federation: Federation, ctx: Context) -> Tensor | None:
    """The deviation of the fresh noise on each row of a client, or of all; None where there is none."""
    # No client has more than the last: noise rises with the number, or is the same everywhere.
    if ctx.phase.cohort is Cohort.SERVER or not federation.fresh_noise(len(federation) - 1):
        return None
    clients = range(len(federation)) if ctx.client == PSEUDO_CLIENT else [ctx.client]
    levels = [federation.fresh_noise(client) for client in clients]
    if not any(levels):
        return None
    return torch.cat([torch.full((federation.size(k),), level) for k, level in zip(clients, levels, strict=True)])
