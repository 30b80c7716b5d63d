"""Least squares with the weights themselves: which input gives what was sent?

Gauss-Newton with damping for every row by itself, the linear systems by conjugate gradients: no Jacobian is written
down, and only products with it are computed, for all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_STEPS, _INNER = 5, 12
_SMALL = 1e-10
"""A squared residual that is so small a part of what was sent is none."""
_SOLVED = 1e-8
"""The same for the linear systems, which need not be solved better than the next step bends them."""
_STUCK = 0.99
"""No step makes a residual smaller than this part any more."""


def inverted(function: Callable[[Tensor], Tensor], sent: Tensor, start: Tensor) -> Tensor:
    """Inputs, one for each row sent, of which `function` gives about what was sent.

    `function` gives out a row for each row it is given, made of that one alone. Where it cannot be differentiated, or
    does not depend on its input, the error of torch is raised.
    """
    x = start.detach()
    error = _squared(function(x).detach() - sent)
    damping = torch.full_like(error, 1e-3)
    for _ in range(_STEPS):
        step = _step(function, sent, x, damping)
        trial = x + step
        found = _squared(function(trial).detach() - sent)
        better = found < error  # Never so where something is not finite.
        stuck = bool((better & (found >= _STUCK * error)).all())
        x = torch.where(_shaped(better, x), trial, x)
        error = torch.where(better, found, error)
        damping = torch.where(better, damping * 0.1, damping * 10)
        if stuck or bool((error <= _SMALL * _squared(sent)).all()):
            break
    return x


def _step(function: Callable[[Tensor], Tensor], sent: Tensor, x: Tensor, damping: Tensor) -> Tensor:
    """The solution d of (J'J + damping) d = J'(sent - function(x)), row by row."""
    at = x.detach().requires_grad_()
    output = function(at)
    dummy = torch.zeros_like(output, requires_grad=True)
    # Linear in the dummy, so that its derivative in the other direction is a product with J. Of sums: torch takes a
    # second to load what it checks given gradients with.
    (pulled,) = torch.autograd.grad((output * dummy).sum(), at, create_graph=True)

    def back(v: Tensor) -> Tensor:
        return torch.autograd.grad((output * v).sum(), at, retain_graph=True)[0]

    def forth(v: Tensor) -> Tensor:
        return torch.autograd.grad((pulled * v).sum(), dummy, retain_graph=True)[0]

    rest = back(sent - output.detach())
    solution, direction, size = torch.zeros_like(x), rest, _squared(rest)
    first = size
    weight = damping * _ratio(_squared(forth(rest)), size)
    for _ in range(_INNER):
        pushed = back(forth(direction)) + _shaped(weight, x) * direction
        length = _ratio(size, (direction * pushed).flatten(1).sum(1))
        solution = solution + _shaped(length, x) * direction
        rest = rest - _shaped(length, x) * pushed
        before, size = size, _squared(rest)
        direction = rest + _shaped(_ratio(size, before), x) * direction
        if bool((size <= _SOLVED * first).all()):
            break
    return solution.detach()


def _squared(rows: Tensor) -> Tensor:
    return rows.flatten(1).square().sum(1)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    return torch.where(below > 0, above / below.clamp(min=1e-30), 0.0)


def _shaped(rows: Tensor, like: Tensor) -> Tensor:
    return rows.reshape(-1, *[1] * (like.dim() - 1))
