"""Trees: nested dictionaries whose leaves are tensors. Everything a method exchanges, keeps or trains is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from fewfed.torch_private import foreach_add, foreach_copy_, foreach_mul, foreach_sub, is_transformed

Tree = dict[str, Any]
"""A nested `dict[str, Tensor | Tree]`. Mypy cannot index a recursive union usefully, hence `Any`."""


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every (path, tensor), paths joined with '/', in insertion order."""
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, Tensor):
            yield path, value
        else:
            yield from leaves(value, path + "/")


def hollows(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Paths of empty sub-trees (a network without buffers has one), which `leaves` cannot show."""
    for name, value in tree.items():
        if not isinstance(value, Tensor):
            if not value:
                yield f"{prefix}{name}"
            yield from hollows(value, f"{prefix}{name}/")


def content(leaf: Tensor) -> memoryview:
    """The bytes of a leaf in reading order, whatever its type."""
    return leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def from_leaves(flat: Mapping[str, Tensor], empty: Iterable[str] = ()) -> Tree:
    """The inverse of `leaves` and `hollows`."""
    tree: Tree = {}
    entries: dict[str, Any] = {**flat, **{path: {} for path in empty}}
    for path, value in entries.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree


def map(function: Callable[..., Tensor], tree: Mapping[str, Any], *others: Mapping[str, Any]) -> Tree:
    """Apply a function leaf by leaf; further trees must have the same names."""
    return {
        name: function(value, *(other[name] for other in others))
        if isinstance(value, Tensor)
        else map(function, value, *(other[name] for other in others))
        for name, value in tree.items()
    }


def add(a: Mapping[str, Any], b: Mapping[str, Any]) -> Tree:
    return _at_once(foreach_add, a, b) if _launches(a) and _launches(b) else map(torch.add, a, b)


def sub(a: Mapping[str, Any], b: Mapping[str, Any]) -> Tree:
    return _at_once(foreach_sub, a, b) if _launches(a) and _launches(b) else map(torch.sub, a, b)


def scale(a: Mapping[str, Any], factor: float | Tensor) -> Tree:
    if _launches(a):
        return _like(a, foreach_mul([leaf for _, leaf in leaves(a)], factor))
    return map(lambda value: value * factor, a)


def zeros_like(a: Mapping[str, Any]) -> Tree:
    return map(torch.zeros_like, a)


def clone(a: Mapping[str, Any]) -> Tree:
    """A copy without history that shares no memory with the original."""
    if not _launches(a):
        return map(lambda value: value.detach().clone(), a)
    copy = map(lambda value: torch.empty_like(value.detach()), a)
    foreach_copy_([leaf for _, leaf in leaves(copy)], [leaf.detach() for _, leaf in leaves(a)])
    return copy


def detach(a: Mapping[str, Any]) -> Tree:
    return map(Tensor.detach, a)


def to(a: Mapping[str, Any], device: torch.device | str) -> Tree:
    return map(lambda value: value.to(device), a)


def dot(a: Mapping[str, Any], b: Mapping[str, Any]) -> Tensor:
    """Sum over all leaves of the elementwise product."""
    if _launches(a) and _launches(b):
        return torch.dot(_flat(a), _flat(b))
    return torch.stack([value for _, value in leaves(map(lambda x, y: (x * y).sum(), a, b))]).sum()


def sq_distance(a: Mapping[str, Any], b: Mapping[str, Any]) -> Tensor:
    """‖a − b‖² over all leaves."""
    if _launches(a) and _launches(b):
        return _flat(sub(a, b)).square().sum()
    return torch.stack([value for _, value in leaves(map(lambda x, y: (x - y).square().sum(), a, b))]).sum()


def where(condition: Tensor, a: Mapping[str, Any], b: Mapping[str, Any]) -> Tree:
    return map(lambda x, y: torch.where(condition, x, y), a, b)


def stack(trees: list[Tree]) -> Tree:
    """Trees of the same names and shapes along a new first axis."""
    return map(lambda *values: torch.stack(values), trees[0], *trees[1:])


def unstack(tree: Mapping[str, Any], count: int) -> list[Tree]:
    """The first `count` trees of a stack, as views."""
    trees: list[Tree] = [{} for _ in range(count)]
    for name, value in tree.items():
        parts = value.unbind(0) if isinstance(value, Tensor) else unstack(value, count)
        for position, one in enumerate(trees):
            one[name] = parts[position]
    return trees


def nbytes(tree: Mapping[str, Any]) -> int:
    """Bytes of all leaves as they would travel."""
    return sum(value.nbytes if isinstance(value, Tensor) else nbytes(value) for value in tree.values())


def _flat(a: Mapping[str, Any]) -> Tensor:
    return torch.cat([leaf.reshape(-1) for _, leaf in leaves(a)])


def _launches(a: Mapping[str, Any]) -> bool:
    """Whether leaves live on an accelerator, where one call for all of them saves a launch each, and outside of
    function transforms, which know no such calls."""
    first = next(leaves(a), None)
    return first is not None and first[1].is_cuda and not is_transformed(first[1])


def _at_once(function: Callable[..., Any], a: Mapping[str, Any], b: Mapping[str, Any]) -> Tree:
    names = dict(leaves(b))
    return _like(a, function([leaf for _, leaf in leaves(a)], [names[path] for path, _ in leaves(a)]))


def _like(a: Mapping[str, Any], values: Iterable[Tensor]) -> Tree:
    return from_leaves(dict(zip((path for path, _ in leaves(a)), values, strict=True)), hollows(a))
