"""The draws of all steps of some turns. A method says what one step draws; of plain noise, one call serves all.

Drawing step by step costs the host more than the device needs for the steps. A method whose steps draw nothing but
uniform and normal numbers gets those of all steps in two calls, and what it makes of them is computed for all steps at
once, and for all turns of a stack if it does not look at the client; the numbers are the same, since chunks of a
stream join to the stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fewfed.engine.device.packed import Packed
from fewfed.engine.device.rows import table_of
from fewfed.engine.device.watch import of_anybody
from fewfed.method import Context, Method
from fewfed.plan import Draws
from fewfed.tree import Tree


@dataclass(frozen=True)
class Amounts:
    """Numbers one step draws; `plain` if they are all of them that it draws."""

    uniform: int
    normal: int
    plain: bool


class _Noting(Draws):
    """Counts what goes through it."""

    def __init__(self, inner: Draws) -> None:
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


class _OtherDraws(RuntimeError):
    """A step drew something else than the first turn's steps did."""


class _Served(Draws):
    """Hands out given numbers, in order."""

    def __init__(self, uniform: Tensor, normal: Tensor) -> None:
        super().__init__()
        self._left = {"uniform": uniform, "normal": normal}

    @property
    def numpy(self) -> np.random.Generator:
        raise _OtherDraws

    def uniform(self, *shape: int) -> Tensor:
        return self._take("uniform", shape)

    def normal(self, *shape: int) -> Tensor:
        return self._take("normal", shape)

    def used_up(self) -> bool:
        return not any(len(left) for left in self._left.values())

    def _take(self, kind: str, shape: tuple[int, ...]) -> Tensor:
        left, count = self._left[kind], math.prod(shape)
        if len(left) < count:
            raise _OtherDraws
        self._left[kind] = left[count:]
        return left[:count].reshape(shape)


class Drawing:
    """Draws whole turns, and remembers what the steps of each phase draw."""

    def __init__(self, method: Method, pinned: bool) -> None:
        self._method = method
        self._pinned = pinned
        self._known: dict[tuple[str, int], Amounts] = {}
        self._apart: set[tuple[str, int]] = set()

    def normals(self, ctx: Context, batch: int) -> int:
        """How many normal numbers the turn will draw, as far as is known."""
        known = self._known.get((ctx.phase.name, batch))
        return known.normal * ctx.steps if known else 0

    def turns(self, draws: Sequence[Draws], contexts: Sequence[Context], batch: int) -> list[Packed]:
        """What `batch` rows draw in each step of each of the contexts, all of one phase. `draws` must be fresh."""
        first = contexts[0]
        kind = (first.phase.name, batch)
        known = self._known.get(kind)
        if known is not None and _noise_only(known) and len(contexts) > 1 and kind not in self._apart:
            steps = [ctx.steps for ctx in contexts]
            anybody = of_anybody(first, *table_of(first.data))
            try:
                drawn = self._at_once(draws, steps, anybody, batch, known)
                return Packed.of_stack(drawn, sum(steps), self._pinned).parts(steps)
            except Exception:  # It looks at the client, or at the numbers themselves: each turn alone will show it.
                self._apart.add(kind)
                draws = [_fresh(ctx) for ctx in contexts]
        return [self.turn(each, ctx, batch) for each, ctx in zip(draws, contexts, strict=True)]

    def turn(self, draws: Draws, ctx: Context, batch: int) -> Packed:
        """What `batch` rows draw in each of the context's steps. `draws` must be fresh."""
        kind = (ctx.phase.name, batch)
        known = self._known.get(kind)
        if known is not None and _noise_only(known):
            try:
                drawn = self._at_once([draws], [ctx.steps], ctx, batch, known)
                return Packed.of_stack(drawn, ctx.steps, self._pinned)
            except (RuntimeError, NotImplementedError):
                # It looks at the numbers themselves, say, which cannot be done for all steps at once.
                self._known[kind] = Amounts(known.uniform, known.normal, plain=False)
                draws = _fresh(ctx)
        noting = _Noting(draws)
        steps = [self._method.draw(noting, ctx, batch) for _ in range(ctx.steps)]
        if known is None:
            self._known[kind] = noting.amounts(ctx.steps)
        return Packed.of(steps, self._pinned)

    def _at_once(
        self, draws: Sequence[Draws], steps: Sequence[int], ctx: Context, batch: int, amounts: Amounts
    ) -> Tree:
        def step(uniform: Tensor, normal: Tensor) -> Tree:
            served = _Served(uniform, normal)
            drawn = self._method.draw(served, ctx, batch)
            if not served.used_up():
                raise _OtherDraws
            return drawn

        uniform = [each.uniform(count, amounts.uniform) for each, count in zip(draws, steps, strict=True)]
        normal = [each.normal(count, amounts.normal) for each, count in zip(draws, steps, strict=True)]
        stacked: Tree = torch.func.vmap(step)(_joined(uniform), _joined(normal))
        return stacked


def _noise_only(amounts: Amounts) -> bool:
    return amounts.plain and amounts.uniform + amounts.normal > 0


def _fresh(ctx: Context) -> Draws:
    return ctx.plan.draws(ctx.clock.round, ctx.phase.name, ctx.client)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
