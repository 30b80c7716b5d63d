"""Compiled gradients: the operations of one step, forward and backward, recorded once and fused by torch's compiler.

What is recorded are tensor operations, not Python, so a method need not know. Compiling takes tens of seconds a shape
and pays off in long runs only, hence it is never chosen by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fewfed import tree
from fewfed.tree import Tree

Function = Callable[[Tree], Tree]


class Compiler:
    """Compiles a function of a tree once for all lanes that share it."""

    def __init__(self, backend: str = "inductor") -> None:
        self._backend = backend
        self._made: dict[object, Function] = {}

    def of(self, key: object, function: Function, example: Tree) -> Function:
        """The compiled form; what the function changes in place in its argument is changed there too."""
        if key not in self._made:
            self._made[key] = _compiled(function, example, self._backend)
        return self._made[key]


def _compiled(function: Function, example: Tree, backend: str) -> Function:
    from torch.fx.experimental.proxy_tensor import make_fx  # Loads the compiler's front end, which few runs need.

    paths, empty = [path for path, _ in tree.leaves(example)], tuple(tree.hollows(example))
    shapes = [leaf.shape for _, leaf in tree.leaves(example)]
    names: list[str] = []

    def flat(*values: Tensor) -> list[Tensor]:
        shaped = (value.view(shape) for value, shape in zip(values, shapes, strict=True))
        result = function(tree.from_leaves(dict(zip(paths, shaped, strict=True)), empty))
        names[:] = [path for path, _ in tree.leaves(result)]
        return [leaf for _, leaf in tree.leaves(result)]

    recorded = make_fx(torch.func.functionalize(flat, remove="mutations"))(*_inputs(example))
    fused = torch.compile(recorded, fullgraph=True, dynamic=False, backend=backend)

    def call(argument: Tree) -> Tree:
        results = fused(*_inputs(argument))
        return tree.from_leaves(dict(zip(names, results, strict=True)))

    return call


def _inputs(argument: Tree) -> list[Tensor]:
    """The leaves, none of them without an axis: the compiler takes a single double for a number, which it does not
    write back."""
    return [leaf if leaf.dim() else leaf.view(1) for _, leaf in tree.leaves(argument)]
