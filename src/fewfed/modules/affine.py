"""Whether what comes out of the first stages of a network is an affine function of its input.

Such features are as good as the inputs: whoever has the weights solves a system of linear equations. It is decided by
trying, so that it holds for any module: an affine f has f(a+b) - f(a) - f(b) + f(0) = 0 for all a and b.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.tree import Tree

if TYPE_CHECKING:
    from fewfed.network import Network

Pair = tuple[Tensor, ...]
"""Some inputs a, and as many inputs b."""

_SCALES = (1.0, 0.01, 100.0)
"""Small inputs do not reach what is clipped, large ones drown a bias: a nonlinearity shows at one of them."""
_PAIRS, _MOST_PAIRS = 6, 24
"""Inputs a and b of one pass, and in all. A unit that is zero below a limit looks affine in half of all pairs."""
_ENOUGH = 0.1
"""So many affine numbers, as a part of those of the input, say too much, whatever stands beside them: a block that
passes its input on next to what it makes of it, or a tuple with a skip."""
_ROUNDING = {torch.float64: 1e-7, torch.float32: 1e-4}
_BENT = 1e-3
"""A bend that is so small a part of what inputs change (a slope of 0.9999 below zero, say) hides nothing of them."""
_DENSITIES = (0.1, 0.5, 0.9)
"""Parts of the numbers of an input that are not zero, where inputs are tried that have none below it."""


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
    beside others: with random weights, since those a run starts from may be zero, and with those it starts from, since
    they may be zero where the stages bend."""
    if not stop:
        return True
    try:
        return _shows_inputs(net, stop, shape, torch.float64)
    except (RuntimeError, TypeError, ValueError):  # A module that makes tensors of its own may know one type alone.
        return _shows_inputs(net, stop, shape, torch.float32)


def _shows_inputs(net: Network, stop: int, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    with_any = _prefix(net, stop, _any_model(net, dtype))
    with_own = _prefix(net, stop, _typed(net.model(), dtype))
    signed = _pairs(shape, dtype)
    # Not with its own weights on positive inputs alone: a few units that are all on would be affine for some seeds.
    return (
        _is_affine(with_any, signed, shape, dtype)
        or _is_affine(with_any, _positive_pairs(shape, dtype), shape, dtype, whole=True)
        or _is_affine(with_own, signed, shape, dtype, whole=True)
    )


def _is_affine(
    function: Callable[[Tensor], Tensor], pairs: Sequence[Pair], shape: tuple[int, ...], dtype: torch.dtype, *,
    whole: bool = False,
) -> bool:  # fmt: skip
    """Whether a function is affine, on what these pairs are of. `whole`: it must be so in every number, and tell enough
    of its input: not all weights are random then, or not all inputs are tried."""
    enough = _ENOUGH * math.prod(shape)
    zero = function(torch.zeros(1, *shape, dtype=dtype))
    affine = torch.ones(zero.shape[1], dtype=torch.bool)
    constant = affine.clone()
    for a, b in pairs:
        both, one, other = function(torch.cat([a + b, a, b])).chunk(3)
        allowed = _ROUNDING[dtype] * _with_mean(both.abs() + one.abs() + other.abs() + zero.abs())
        change = _with_mean((both - zero).abs() + (one - zero).abs() + (other - zero).abs())
        bend = (both - one - other + zero).abs()
        affine &= (bend <= allowed + _BENT * change).all(0)  # Never so where something is not finite.
        constant &= ((one - zero).abs() <= allowed).all(0)
        if not affine.all() and (whole or int((affine & ~constant).sum()) < enough):
            return False
    return not whole or int((~constant).sum()) >= enough


def _with_mean(sizes: Tensor) -> Tensor:
    return sizes + sizes.square().mean(1, keepdim=True).sqrt()


def _pairs(shape: tuple[int, ...], dtype: torch.dtype) -> list[Pair]:
    random = torch.Generator().manual_seed(0)
    scale = torch.tensor([_SCALES[k % len(_SCALES)] for k in range(_PAIRS)], dtype=dtype).view(-1, *[1] * len(shape))
    return [
        tuple(torch.randn(_PAIRS, *shape, generator=random, dtype=dtype) * scale for _ in range(2))
        for _ in range(_MOST_PAIRS // _PAIRS)
    ]


def _positive_pairs(shape: tuple[int, ...], dtype: torch.dtype) -> list[Pair]:
    """Inputs as pictures and counts are that nobody centred, from 0 to 1, and so are their sums: what is cut off below
    zero cuts off nothing of them."""
    random = torch.Generator().manual_seed(2)
    count = len(_DENSITIES)
    density = torch.tensor(_DENSITIES).view(-1, *[1] * len(shape))
    found: list[Pair] = []
    for _ in range(_MOST_PAIRS // count):
        x, part, drawn = (torch.rand(count, *shape, generator=random, dtype=dtype) for _ in range(3))
        x = x * (drawn < density)
        found.append((x * part, x * (1 - part)))
    return found


def _prefix(net: Network, stop: int, model: Tree) -> Callable[[Tensor], Tensor]:
    """The first stages in eval mode: one row of numbers for each input."""

    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            found = net.apply(model, x, stop=stop, train=False)
        return torch.cat([part.reshape(len(x), -1).to(x.dtype) for part in _tensors(found)], dim=1)

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
    return {**_typed(model, dtype), "params": params}


def _typed(model: Tree, dtype: torch.dtype) -> Tree:
    return tree.map(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, model)


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
