"""Draws the random numbers of whole turns at once.

A method's `draw` is written for one step. Calling it step by step costs the host more time than the device needs for
the steps. Where a step draws only uniform and normal numbers, those of all steps are drawn in two calls, and `draw` is
evaluated for all steps at once with `vmap` (for all turns of a stack if it does not look at the client). The numbers
are the same as step by step, because they are taken from the same streams in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fewfed.engine.executors.cuda.packed import Packed
from fewfed.engine.executors.cuda.rows import table_of
from fewfed.engine.executors.cuda.watch import of_anybody
from fewfed.method import Context
from fewfed.plan import Random
from fewfed.tree import Tree


@dataclass(frozen=True)
class Amounts:
    """How many numbers one step draws; `plain` if it draws only uniform and normal ones."""

    uniform: int
    normal: int
    plain: bool


class _Noting(Random):
    """Passes draws on to another source and counts them."""

    def __init__(self, inner: Random) -> None:
        super().__init__()
        self._inner = inner
        self._counts = {"uniform": 0, "normal": 0}
        self._plain = True

    def amounts(self, steps: int) -> Amounts:
        return Amounts(self._counts["uniform"] // steps, self._counts["normal"] // steps, self._plain)

    @property
    def numpy(self) -> np.random.Generator:  # What every other kind of draw uses.
        self._plain = False
        return self._inner.numpy

    def uniform(self, *shape: int) -> Tensor:
        self._counts["uniform"] += math.prod(shape)
        return self._inner.uniform(*shape)

    def normal(self, *shape: int) -> Tensor:
        self._counts["normal"] += math.prod(shape)
        return self._inner.normal(*shape)


class _DrawsOtherwise(RuntimeError):
    """A step drew something else than the first turn's steps did."""


class _Served(Random):
    """Returns given numbers, in order, as if they were drawn."""

    def __init__(self, uniform: Tensor, normal: Tensor) -> None:
        super().__init__()
        self._left = {"uniform": uniform, "normal": normal}

    @property
    def numpy(self) -> np.random.Generator:
        raise _DrawsOtherwise

    def uniform(self, *shape: int) -> Tensor:
        return self._take("uniform", shape)

    def normal(self, *shape: int) -> Tensor:
        return self._take("normal", shape)

    def used_up(self) -> bool:
        return not any(len(left) for left in self._left.values())

    def _take(self, kind: str, shape: tuple[int, ...]) -> Tensor:
        left, count = self._left[kind], math.prod(shape)
        if len(left) < count:
            raise _DrawsOtherwise
        self._left[kind] = left[count:]
        return left[:count].reshape(shape)


class Drawing:
    """Draws whole turns, and remembers what the steps of each phase draw."""

    def __init__(self, pinned: bool) -> None:
        self._pinned = pinned
        self._known: dict[tuple[str, int], Amounts] = {}
        self._apart: set[tuple[str, int]] = set()

    def normals(self, ctx: Context, batch: int) -> int:
        """How many normal numbers the turn will draw, as far as is known."""
        known = self._known.get((ctx.phase.name, batch))
        return known.normal * ctx.steps if known else 0

    def turns(self, sources: Sequence[Random], contexts: Sequence[Context], batch: int) -> list[Packed]:
        """What `batch` rows draw in each step of each of the contexts, all of one phase. `sources` must be fresh."""
        first = contexts[0]
        kind = (first.phase.name, batch)
        known = self._known.get(kind)
        if known is not None and _noise_only(known) and len(contexts) > 1 and kind not in self._apart:
            steps = [ctx.steps for ctx in contexts]
            anybody = of_anybody(first, *table_of(first.data))
            try:
                drawn = self._at_once(sources, steps, anybody, batch, known)
                return Packed.of_stack(drawn, sum(steps), self._pinned).parts(steps)
            except Exception:  # `draw` uses the client or the values: draw for each turn by itself.
                self._apart.add(kind)
                sources = [_fresh(ctx) for ctx in contexts]
        return [self.turn(each, ctx, batch) for each, ctx in zip(sources, contexts, strict=True)]

    def turn(self, random: Random, ctx: Context, batch: int) -> Packed:
        """What `batch` rows draw in each of the context's steps. `random` must be fresh."""
        kind = (ctx.phase.name, batch)
        known = self._known.get(kind)
        if known is not None and _noise_only(known):
            try:
                drawn = self._at_once([random], [ctx.steps], ctx, batch, known)
                return Packed.of_stack(drawn, ctx.steps, self._pinned)
            except (RuntimeError, NotImplementedError):
                # `draw` uses the values of the numbers, say, which `vmap` does not allow: draw step by step.
                self._known[kind] = Amounts(known.uniform, known.normal, plain=False)
                random = _fresh(ctx)
        noting = _Noting(random)
        steps = [ctx.phase.does.draw(noting, ctx, batch) for _ in range(ctx.steps)]
        if known is None:
            self._known[kind] = noting.amounts(ctx.steps)
        return Packed.of(steps, self._pinned)

    def _at_once(
        self, sources: Sequence[Random], steps: Sequence[int], ctx: Context, batch: int, amounts: Amounts
    ) -> Tree:
        def step(uniform: Tensor, normal: Tensor) -> Tree:
            served = _Served(uniform, normal)
            drawn = ctx.phase.does.draw(served, ctx, batch)
            if not served.used_up():
                raise _DrawsOtherwise
            return drawn

        uniform = [each.uniform(count, amounts.uniform) for each, count in zip(sources, steps, strict=True)]
        normal = [each.normal(count, amounts.normal) for each, count in zip(sources, steps, strict=True)]
        stacked: Tree = torch.func.vmap(step)(_joined(uniform), _joined(normal))
        return stacked


def _noise_only(amounts: Amounts) -> bool:
    return amounts.plain and amounts.uniform + amounts.normal > 0


def _fresh(ctx: Context) -> Random:
    return ctx.plan.random(ctx.clock.round, ctx.phase.name, ctx.client)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
