"""One local step of a method: its gradient and its loss terms.

This is the only training step of the project. It has two forms: `by_tape` for steps taken one after another
(`fewfed.engine.turn`), and `by_transform`, a pure function that can be stacked over clients and compiled
(`fewfed.engine.executors.cuda`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from fewfed.engine.answers import refuse_constant, refuse_odd_gradient, refuse_odd_terms
from fewfed.method import Batch, Context
from fewfed.tree import Tree

Surrounding = Callable[[], AbstractContextManager[object]]
"""What a loss is computed inside: autocast, or nothing."""


class Step:
    """Steps of one method. `ctx.phase` says whose functions they are."""

    def __init__(self, observed: frozenset[str], precision: Surrounding = nullcontext) -> None:
        """`observed`: loss terms that are logged but not minimised."""
        self._observed = observed
        self._precision = precision
        self._known = False
        """Whether terms and gradient of a step have been looked at: those of the next steps are like them."""

    def by_tape(self, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        """Gradient and terms, by torch's tape; the parameters must require gradients."""
        does = ctx.phase.does

        def differentiate(point: Tree) -> tuple[Tree, Tree]:
            # A method may ask for the gradient in more than it lets the optimiser train.
            leaves = {
                name: leaf if leaf.requires_grad else leaf.detach().requires_grad_()
                for name, leaf in point["params"].items()
            }
            with self._precision():
                terms = does.loss({**point, "params": leaves}, ctx, batch)
                total = self._total(terms)
            grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
            return dict(zip(leaves, grads, strict=True)), {name: value.detach() for name, value in terms.items()}

        return self._looked_at(does.gradient(differentiate, work, ctx, batch), work)

    def by_transform(self, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        """The same as a pure function of its arguments, which can be stacked and compiled."""
        does = ctx.phase.does

        def differentiate(point: Tree) -> tuple[Tree, Tree]:
            # What a loss updates in place must be an argument: a transform refuses to change what it closes over.
            def value(leaves: Tree, carried: Tree) -> tuple[Tensor, Tree]:
                with self._precision():  # Around the loss only: gradients are taken in the types of the forward pass.
                    terms = does.loss({**carried, "params": leaves}, ctx, batch)
                    return self._total(terms), terms

            carried = {name: part for name, part in point.items() if name != "params"}
            found: tuple[Tree, Tree] = torch.func.grad(value, has_aux=True)(point["params"], carried)
            return found

        return self._looked_at(does.gradient(differentiate, work, ctx, batch), work)

    def _total(self, terms: dict[str, Tensor]) -> Tensor:
        if not self._known:
            refuse_odd_terms(terms, self._observed)
        total = minimised(terms, self._observed)
        refuse_constant(total)
        return total

    def _looked_at(self, found: tuple[Tree, Tree], work: Tree) -> tuple[Tree, Tree]:
        if not self._known:
            refuse_odd_gradient(found, work["params"])
            self._known = True
        return found


def minimised(terms: dict[str, Tensor], observed: frozenset[str]) -> Tensor:
    """The sum of all terms that are not only observed."""
    counted = [value for name, value in terms.items() if name not in observed]
    total = counted[0]
    for value in counted[1:]:
        total = total + value
    return total
