"""Contexts for recorded steps. A recorded step must not contain Python numbers that belong to one client."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

from torch import Tensor

from fewfed.method import Context
from fewfed.phase import Clock
from fewfed.tree import Tree


class CannotCapture(Exception):
    """Why a method's step cannot be replayed for other clients."""


class WatchedClock(Clock):
    """A clock that notes being read: a step that depends on the round is recorded again in every round."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("round", "rounds", "epochs", "first", "last"):
            object.__getattribute__(self, "_seen").add(name)
        return object.__getattribute__(self, name)

    @classmethod
    def around(cls, clock: Clock, seen: set[str]) -> WatchedClock:
        watched = cls(clock.round, clock.rounds, clock.epochs)
        object.__setattr__(watched, "_seen", seen)
        return watched


def _refused(name: str) -> NoReturn:
    raise CannotCapture(f"its loss uses ctx.{name}, which differs from client to client")


class Forbidden:
    """Replaces a number of one client: it can be passed on, but every use raises `CannotCapture`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: object) -> NoReturn:
        _refused(self._name)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __and__ = __rand__ = _refuse
    __neg__ = __lt__ = __le__ = __gt__ = __ge__ = __len__ = __bool__ = __int__ = __float__ = __index__ = _refuse
    __eq__ = __hash__ = __str__ = __format__ = _refuse
    __getattr__ = __iter__ = __contains__ = __call__ = _refuse

    def __getitem__(self, _: object) -> Forbidden:
        """A part of it may be passed on as well."""
        return self


class _Rows(Forbidden):
    """Replaces the rows of one client; only the shape of a row can be read."""

    def __init__(self, like: Tensor) -> None:
        super().__init__("data")
        self.shape = (Forbidden("data"), *like.shape[1:])


class _Data:
    """Replaces the data of one client; the number of rows can be read if all clients have the same."""

    def __init__(self, x: Tensor, y: Tensor, size: int | None) -> None:
        self.x, self.y, self._size = _Rows(x), _Rows(y), size

    def __len__(self) -> int:
        return _refused("data") if self._size is None else self._size

    def __getattr__(self, name: str) -> NoReturn:
        _refused("data")


def of_anybody(ctx: Context, x: Tensor, y: Tensor, *, bare: bool = False) -> Context:
    """A context without anything of a single client; `x`, `y` are rows like the clients'.

    `bare`: no client has state or was sent anything personal, so both can be read.
    """
    own = ("client", "lr", "steps", "counts", *(() if bare else ("personal", "state")))
    hidden: dict[str, Any] = {**{name: Forbidden(name) for name in own}, "data": _Data(x, y, None)}
    return dataclasses.replace(ctx, **hidden)


def of_many(ctx: Context, x: Tensor, y: Tensor, own: Tree) -> Context:
    """A context for a stack of clients with equal numbers of rows and steps; `own` has their values, clients first."""
    hidden: dict[str, Any] = {"client": Forbidden("client"), "data": _Data(x, y, ctx.size)}
    return dataclasses.replace(ctx, personal=own["personal"], state=own["state"], counts=own["counts"], **hidden)


def watched(ctx: Context, seen: set[str]) -> Context:
    """The context of a recorded step."""
    hidden: dict[str, Any] = {name: Forbidden(name) for name in ("client", "data", "lr", "steps")}
    return dataclasses.replace(ctx, clock=WatchedClock.around(ctx.clock, seen), **hidden)
