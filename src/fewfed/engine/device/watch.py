"""A context for captured steps: a step that is replayed must not have Python numbers of one client frozen into it."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

from fewfed.method import Context
from fewfed.phase import Clock


class CannotCapture(Exception):
    """Why a method's step cannot be replayed for other clients."""


class WatchedClock(Clock):
    """A clock that notes being read: a step that depends on the round is captured anew each round."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("round", "rounds", "epochs", "first", "last"):
            object.__getattribute__(self, "_seen").add(name)
        return object.__getattribute__(self, name)

    @classmethod
    def around(cls, clock: Clock, seen: set[str]) -> WatchedClock:
        watched = cls(clock.round, clock.rounds, clock.epochs)
        object.__setattr__(watched, "_seen", seen)
        return watched


class Forbidden:
    """Stands where a number of one client stood: may be passed on, refuses every use."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: object) -> NoReturn:
        raise CannotCapture(f"its loss uses ctx.{self._name}, which differs from client to client")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _refuse
    __neg__ = __lt__ = __le__ = __gt__ = __ge__ = __len__ = __bool__ = __int__ = __float__ = __index__ = _refuse
    __getattr__ = __getitem__ = __iter__ = __call__ = _refuse


def watched(ctx: Context, seen: set[str]) -> Context:
    """The context a captured step may see."""
    hidden: dict[str, Any] = {name: Forbidden(name) for name in ("client", "data", "lr", "steps")}
    return dataclasses.replace(ctx, clock=WatchedClock.around(ctx.clock, seen), **hidden)
