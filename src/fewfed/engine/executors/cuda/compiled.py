"""Compiled gradients: the operations of a step, forward and backward, recorded once and fused by torch's compiler.

Tensor operations are recorded, not Python, so methods need no change. Compiling takes tens of seconds for each shape
and pays off only in long runs, so it is used only if the user asks for it (`cuda.compiled=steps`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fewfed import tree
from fewfed.torch_private import recorded
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
    paths, empty = [path for path, _ in tree.leaves(example)], tuple(tree.hollows(example))
    shapes = [leaf.shape for _, leaf in tree.leaves(example)]
    names: list[str] = []

    def flat(*values: Tensor) -> list[Tensor]:
        shaped = (value.view(shape) for value, shape in zip(values, shapes, strict=True))
        result = function(tree.from_leaves(dict(zip(paths, shaped, strict=True)), empty))
        names[:] = [path for path, _ in tree.leaves(result)]
        return [leaf for _, leaf in tree.leaves(result)]

    graph = recorded(flat, *_inputs(example))
    fused = torch.compile(graph, fullgraph=True, dynamic=False, backend=backend)

    def call(argument: Tree) -> Tree:
        results = fused(*_inputs(argument))
        return tree.from_leaves(dict(zip(names, results, strict=True)))

    return call


def _inputs(argument: Tree) -> list[Tensor]:
    """The leaves, each with at least one axis: the compiler treats a tensor without axes as a number, and changes made
    to it in place would be lost."""
    return [leaf if leaf.dim() else leaf.view(1) for _, leaf in tree.leaves(argument)]
