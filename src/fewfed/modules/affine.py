"""Whether what comes out of the first stages of a network is an affine function of its input.

Such features are as good as the inputs: whoever has the weights solves a system of linear equations. It is decided by
trying, so that it holds for any module: an affine f has f(a+b) - f(a) - f(b) + f(0) = 0 for all a and b.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fewfed.tree import Tree

if TYPE_CHECKING:
    from fewfed.network import Network

_SCALES = (1.0, 0.01, 100.0)
"""Small inputs do not reach what is clipped, large ones drown a bias: a nonlinearity shows at one of them."""
_PAIRS, _MOST_PAIRS = 6, 24
"""Inputs a and b of one pass, and in all. A unit that is zero below a limit looks affine in half of all pairs."""
_ENOUGH = 0.1
"""So many affine numbers, as a part of those of the input, say too much, whatever stands beside them: a block that
passes its input on next to what it makes of it, or a tuple with a skip."""
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-4}


def default_cut(net: Network, shape: tuple[int, ...]) -> str | None:
    """The first stage before the last that gives out fewer numbers than the input has and is no affine function of it;
    else the one with the fewest numbers of those that are none; None where all are affine."""
    sizes = _sizes(net, shape)
    inputs = math.prod(shape)
    narrow = [stop for stop, size in sizes.items() if size < inputs]
    others = sorted((stop for stop in sizes if stop not in narrow), key=lambda stop: sizes[stop])
    return next((net.stages[stop - 1] for stop in (*narrow, *others) if not net.is_affine(stop, shape)), None)


def is_affine_at(net: Network, stop: int, shape: tuple[int, ...]) -> bool:
    """Whether the first `stop` stages give out affine functions of an input of this shape, or enough such numbers
    beside others. With random weights: those a run starts from may be zero."""
    if not stop:
        return True
    try:
        return _is_affine(_prefix(net, stop, torch.float64), shape, torch.float64)
    except (RuntimeError, TypeError, ValueError):  # A module that makes tensors of its own may know one type alone.
        return _is_affine(_prefix(net, stop, torch.float32), shape, torch.float32)


def _is_affine(function: Callable[[Tensor], Tensor], shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    inputs, tolerance = math.prod(shape), _TOLERANCE[dtype]
    zero = function(torch.zeros(1, *shape, dtype=dtype))
    affine = torch.ones(zero.shape[1], dtype=torch.bool)
    constant = affine.clone()
    for a, b in _pairs(shape, dtype):
        both, one, other = function(torch.cat([a + b, a, b])).chunk(3)
        sizes = both.abs() + one.abs() + other.abs() + zero.abs()
        allowed = tolerance * (sizes + sizes.square().mean(1, keepdim=True).sqrt())
        affine &= ((both - one - other + zero).abs() <= allowed).all(0)  # Never so where something is not finite.
        constant &= ((one - zero).abs() <= allowed).all(0)
        if not affine.all() and int((affine & ~constant).sum()) < _ENOUGH * inputs:
            return False
    return True


def _pairs(shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(0)
    scale = torch.tensor([_SCALES[k % len(_SCALES)] for k in range(_PAIRS)], dtype=dtype).view(-1, *[1] * len(shape))
    for _ in range(_MOST_PAIRS // _PAIRS):
        a, b = (torch.randn(_PAIRS, *shape, generator=random, dtype=dtype) for _ in range(2))
        yield a * scale, b * scale


def _prefix(net: Network, stop: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """The first stages in eval mode: one row of numbers for each input."""
    model = _any_model(net, dtype)

    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            found = net.apply(model, x, stop=stop, train=False)
        return torch.cat([part.reshape(len(x), -1).to(dtype) for part in _tensors(found)], dim=1)

    return function


def _sizes(net: Network, shape: tuple[int, ...]) -> dict[int, int]:
    """How many numbers come out of the stages before each cut but the last."""
    model, x = net.model(), torch.zeros(1, *shape, dtype=net.dtype)
    found: dict[int, int] = {}
    with torch.no_grad():
        for stop in range(1, len(net.stages)):
            x = net.apply(model, x, start=stop - 1, stop=stop, train=False)
            found[stop] = sum(part.numel() for part in _tensors(x))
    return found


def _any_model(net: Network, dtype: torch.dtype) -> Tree:
    """Random weights of a usual size. Vectors, which may be scales, stay near what they are."""
    random = torch.Generator().manual_seed(1)
    model = net.model()
    params = {name: _any_weight(leaf, random, dtype) for name, leaf in model["params"].items()}
    buffers = {name: leaf.to(dtype) if leaf.is_floating_point() else leaf for name, leaf in model["buffers"].items()}
    return {"params": params, "buffers": buffers}


def _any_weight(leaf: Tensor, random: torch.Generator, dtype: torch.dtype) -> Tensor:
    drawn = torch.randn(leaf.shape, generator=random, dtype=dtype)
    if leaf.dim() < 2:
        return leaf.to(dtype) + 0.1 * drawn
    return drawn / math.sqrt(max(1, leaf[0].numel()))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [tensor for part in parts for tensor in _tensors(part)]
