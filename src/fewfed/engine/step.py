"""One local step of a method: its gradient and its loss terms.

This is the only training step of the project. It has two forms: `by_tape` for steps taken one after another
(`fewfed.engine.turn`), and `by_transform`, a pure function that can be stacked over clients and compiled
(`fewfed.engine.executors.cuda`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.engine.answers import refuse_constant, refuse_odd_gradient, refuse_odd_terms
from fewfed.errors import FewfedError, RunError, place_of
from fewfed.method import Batch, Context
from fewfed.torch_private import is_transformed
from fewfed.tree import Tree

Surrounding = Callable[[], AbstractContextManager[object]]
"""What a loss is computed inside: autocast, or nothing."""


class Step:
    """Steps of one method. `ctx.phase` says whose functions they are."""

    def __init__(
        self, observed: frozenset[str], precision: Surrounding = nullcontext, *, recorded: bool = False
    ) -> None:
        """`observed`: loss terms that are logged but not minimised. `recorded`: values must not be looked at."""
        self._observed = observed
        self._precision = precision
        self._recorded = recorded
        self._known = False
        """Whether terms and gradient of a step have been looked at: those of the next steps are like them."""
        self._apart: set[frozenset[str]] = set()
        """Draws with which the loss of a batch was seen to be the mean of its rows' losses."""

    def by_tape(self, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        """Gradient and terms, by torch's tape; the parameters must require gradients."""
        return self._taken(_ByTape(self, ctx, batch), work, ctx, batch)

    def by_transform(self, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        """The same as a pure function of its arguments, which can be stacked and compiled."""
        return self._taken(_ByTransform(self, ctx, batch), work, ctx, batch)

    def terms(self, work: Tree, ctx: Context, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """What is minimised, and the terms it is made of."""
        with self._precision():  # Around the loss only: gradients are taken in the types of the forward pass.
            found = ctx.phase.does.loss(work, ctx, batch)
            if not self._known:
                refuse_odd_terms(found, self._observed)
            total = minimised(found, self._observed)
        refuse_constant(total)
        return total, found

    def refuse_coupled(self, work: Tree, ctx: Context, batch: Batch, of_rows: Tensor) -> None:
        """Raise where the loss of a batch is not the mean of its rows' losses, where numbers can be looked at: what is
        trained row by row would be something else then. `fewfed.engine.rows_apart` tries it out before a run."""
        kind = frozenset(path for path, _ in tree.leaves(batch.drawn))
        if self._recorded or kind in self._apart or ctx.net.is_random or is_transformed(of_rows):
            return
        with torch.no_grad(), self._precision():
            whole = minimised(ctx.phase.does.loss(work, ctx, batch), self._observed)
        together, apart = float(whole), float(of_rows.mean())
        if not abs(together - apart) <= 10 * torch.finfo(of_rows.dtype).eps ** 0.5 * (1 + abs(together)):
            # No numbers: the server reads why a client failed, and they would be exact losses of its rows.
            raise RunError(
                "loss: of a batch it is not what it is of its rows one by one on average: it sets rows of a batch "
                "against each other; expected a loss that is a mean over rows"
            )
        self._apart.add(kind)

    def _taken(
        self, differentiate: _ByTape | _ByTransform, work: Tree, ctx: Context, batch: Batch
    ) -> tuple[Tree, Tree]:
        found = ctx.phase.does.gradient(differentiate, work, ctx, batch)
        if not self._known:
            refuse_odd_gradient(found, work["params"])
            self._known = True
        return found


class _Differentiation:
    """What a method's `gradient` may ask for in one step."""

    def __init__(self, step: Step, ctx: Context, batch: Batch) -> None:
        self._step, self._ctx, self._batch = step, ctx, batch

    def by_row(self, work: Tree, /) -> Tree:
        """For every row of the batch the gradient of the loss of that row alone, rows first."""
        ctx, batch = self._ctx, self._batch
        carried = {name: part for name, part in work.items() if name != "params"}

        def of_one(x: Tensor, y: Tensor, drawn: Tree) -> tuple[Tree, Tensor]:
            alone = Batch(x.unsqueeze(0), y.unsqueeze(0), drawn)

            def value(leaves: Tree) -> tuple[Tensor, Tensor]:
                total, _ = self._step.terms({**carried, "params": leaves}, ctx, alone)
                return total, total.detach()

            found: tuple[Tree, Tensor] = torch.func.grad(value, has_aux=True)(tree.detach(work["params"]))
            return found

        rows = len(batch.x)
        # What is drawn for each row keeps a first dimension of one; everything else is the same for all rows.
        own = {path for path, leaf in tree.leaves(batch.drawn) if leaf.dim() and leaf.shape[0] == rows}
        drawn = _mapped(batch.drawn, lambda path, leaf: leaf.unsqueeze(1) if path in own else leaf)
        places = _mapped(batch.drawn, lambda path, _: 0 if path in own else None)
        by_row = torch.func.vmap(of_one, in_dims=(0, 0, places), randomness="different")
        try:
            gradients, losses = by_row(batch.x, batch.y, drawn)
        except FewfedError:
            raise
        except Exception as error:
            self._refuse_together(work, error)
            raise
        self._step.refuse_coupled(work, ctx, batch, losses)
        result: Tree = gradients
        return result

    def _refuse_together(self, work: Tree, error: Exception) -> None:
        """Raise where the loss of the whole batch can be had, and that of one of its rows cannot: what torch says of
        that is no help."""
        buffers = tree.clone({name: part for name, part in work.items() if name != "params"})
        try:
            self._step.terms({**buffers, "params": work["params"]}, self._ctx, self._batch)
        except Exception:  # Then it is another mistake, and said as such.
            return
        place = place_of(error)
        raise RunError(
            "loss: of a batch it can be had, but not of one row by itself: it looks for other rows of the batch, or "
            f"keeps something of what it sees{f' ({place})' if place else ''}; expected a loss that is a mean over rows"
        ) from error


class _ByTape(_Differentiation):
    def __call__(self, point: Tree, /) -> tuple[Tree, Tree]:
        # A method may ask for the gradient in more than it lets the optimiser train.
        leaves = {
            name: leaf if leaf.requires_grad else leaf.detach().requires_grad_()
            for name, leaf in point["params"].items()
        }
        total, terms = self._step.terms({**point, "params": leaves}, self._ctx, self._batch)
        grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, grads, strict=True)), {name: value.detach() for name, value in terms.items()}


class _ByTransform(_Differentiation):
    def __call__(self, point: Tree, /) -> tuple[Tree, Tree]:
        # What a loss updates in place must be an argument: a transform refuses to change what it closes over.
        def value(leaves: Tree, carried: Tree) -> tuple[Tensor, Tree]:
            return self._step.terms({**carried, "params": leaves}, self._ctx, self._batch)

        carried = {name: part for name, part in point.items() if name != "params"}
        found: tuple[Tree, Tree] = torch.func.grad(value, has_aux=True)(point["params"], carried)
        return found


def minimised(terms: dict[str, Tensor], observed: frozenset[str]) -> Tensor:
    """The sum of all terms that are not only observed."""
    counted = [value for name, value in terms.items() if name not in observed]
    total = counted[0]
    for value in counted[1:]:
        total = total + value
    return total


def _mapped(drawn: Tree, function: Callable[[str, Tensor], Any], prefix: str = "") -> Any:
    return {
        name: function(f"{prefix}{name}", value)
        if isinstance(value, Tensor)
        else _mapped(value, function, f"{prefix}{name}/")
        for name, value in drawn.items()
    }
