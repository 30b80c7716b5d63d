"""Functions of many small tensor operations, fused into a few where an executor asks for it.

A device takes about as long for a tiny operation as for a middling one, so a formula of forty operations on channel
statistics costs more than the convolution before it. Marked functions stay plain tensor code for everybody; inside
`Fusion.asked` they go through torch's compiler, alone, which takes seconds where a whole step takes minutes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch

from fewfed.torch_private import few_compilations, transforming

P = ParamSpec("P")
R = TypeVar("R")

_VARIANTS = 64
"""Compilations of one function: types of numbers, orders in memory, options."""

_asked: ContextVar[Fusion | None] = ContextVar("fusion", default=None)


def fusable(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a pure function of tensors as worth fusing."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        fusion = _asked.get()
        # Function transforms look at single operations, and are fused whole if at all.
        if fusion is None or transforming():
            return function(*args, **kwargs)
        return fusion.of(function)(*args, **kwargs)

    return call


class Fusion:
    """Compiled forms of marked functions, each made when first used. Switched off, it only notes what it meets."""

    def __init__(self, *, on: bool, backend: str = "inductor") -> None:
        self.on = on
        self._backend = backend
        self._met: set[Callable[..., Any]] = set()
        self._made: dict[Callable[..., Any], Callable[..., Any]] = {}

    @property
    def met(self) -> bool:
        """Whether there is anything to fuse."""
        return bool(self._met)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """Marked functions called inside are fused."""
        token = _asked.set(self)
        try:
            yield
        finally:
            _asked.reset(token)

    def of(self, function: Callable[P, R]) -> Callable[P, R]:
        """The form of a function that is to be called."""
        self._met.add(function)
        if not self.on:
            return function
        if function not in self._made:
            self._made[function] = _compiled(function, self._backend)
        return self._made[function]


def _compiled(function: Callable[P, R], backend: str) -> Callable[P, R]:
    # With sizes as symbols the layers of a network share a compilation.
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=backend)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with few_compilations(_VARIANTS):
            return compiled(*args, **kwargs)

    return call
