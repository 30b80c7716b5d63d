"""A method's gradient of one step, in the two forms a lane needs."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import torch
from torch import Tensor

from fewfed.engine.client import sum_terms
from fewfed.engine.device.watch import watched
from fewfed.method import Batch, Context, Method
from fewfed.tree import Tree


class Gradients:
    """The gradient of a method for clients like the one the context is of; `seen` notes what it read of the clock."""

    def __init__(self, method: Method, ctx: Context, autocast: torch.dtype | None, device: torch.device) -> None:
        self._method = method
        self._ctx = ctx
        self._dtype = autocast
        self._device = device
        self.seen: set[str] = set()

    def by_autograd(self, work: Tree, own: Tree, shared: Tree, batch: Batch) -> tuple[Tree, Tree]:
        """Gradient and terms, by the tape; the parameters must require gradients."""
        ctx = self._context(own, shared)

        def differentiate(point: Tree) -> tuple[Tree, Tree]:
            with self._autocast():
                terms = self._method.loss(point, ctx, batch)
                total = sum_terms(terms, self._method.observed)
            leaves = point["params"]
            grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
            return dict(zip(leaves, grads, strict=True)), {name: value.detach() for name, value in terms.items()}

        return self._method.gradient(differentiate, work, ctx, batch)

    def by_transform(self, work: Tree, own: Tree, shared: Tree, batch: Batch) -> tuple[Tree, Tree]:
        """The same as a pure function of its arguments, which can be stacked and compiled."""
        ctx = self._context(own, shared)

        def differentiate(point: Tree) -> tuple[Tree, Tree]:
            # What a loss updates in place must be an argument: a transform refuses to change what it closes over.
            def value(leaves: Tree, carried: Tree) -> tuple[Tensor, Tree]:
                with self._autocast():  # Around the loss only: gradients are taken in the types of the forward pass.
                    terms = self._method.loss({**carried, "params": leaves}, ctx, batch)
                    return sum_terms(terms, self._method.observed), terms

            carried = {name: part for name, part in point.items() if name != "params"}
            found: tuple[Tree, Tree] = torch.func.grad(value, has_aux=True)(point["params"], carried)
            return found

        return self._method.gradient(differentiate, work, ctx, batch)

    def _context(self, own: Tree, shared: Tree) -> Context:
        ctx = dataclasses.replace(
            self._ctx, shared=shared, personal=own["personal"], state=own["state"], counts=own["counts"]
        )
        return watched(ctx, self.seen)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._dtype)
