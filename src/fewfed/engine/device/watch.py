"""A context that notices what a loss reads: a captured step must not depend on Python numbers that change."""

from __future__ import annotations

from typing import Any

from fewfed.method import Context

_PER_ROUND = frozenset({"clock", "lr"})
_PER_CLIENT = frozenset({"client", "size", "data", "steps"})


class CannotCapture(Exception):
    """Why a method's step cannot be replayed for other clients."""


class WatchedContext(Context):
    """Reading the round's numbers is noted in `seen` (the step is then captured anew each round); reading one client's
    is refused, since the number would be frozen into every other client's step."""

    def __getattribute__(self, name: str) -> Any:
        if name in _PER_CLIENT:
            raise CannotCapture(f"its loss reads ctx.{name}, a number of one client")
        if name in _PER_ROUND:
            seen: set[str] = object.__getattribute__(self, "_seen")
            seen.add(name)
        return object.__getattribute__(self, name)

    @classmethod
    def around(cls, ctx: Context, seen: set[str]) -> WatchedContext:
        watched = object.__new__(cls)
        for name, value in vars(ctx).items():
            object.__setattr__(watched, name, value)
        object.__setattr__(watched, "_seen", seen)
        return watched
