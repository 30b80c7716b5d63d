"""What happens to an input between a user's file and the network, as modules whose constants are buffers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fewfed import tree
from fewfed.data.scaling import Scaling
from fewfed.method import Method
from fewfed.tree import Tree


class Scale(nn.Module):
    """Numbers of the network's type; missing values filled in, then the mean subtracted and the deviation divided by,
    where there are constants."""

    mean: Tensor | None
    std: Tensor | None
    fill: Tensor | None

    def __init__(self, scaling: Scaling | None, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self.register_buffer("mean", None if scaling is None else scaling.mean.clone())
        self.register_buffer("std", None if scaling is None else scaling.std.clone())
        self.register_buffer("fill", None if scaling is None or scaling.fill is None else scaling.fill.clone())

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self._dtype)
        if self.mean is None or self.std is None:
            return x
        return Scaling(self.mean, self.std, self.fill).apply(x)


class Present(nn.Module):
    """Inputs as a method wants the model that predicts to see them."""

    def __init__(self, method: Method, model: Tree) -> None:
        super().__init__()
        self._method = method
        self._paths = [path for path, _ in tree.leaves(model)]
        self._hollows = list(tree.hollows(model))
        for number, (_, leaf) in enumerate(tree.leaves(model)):
            self.register_buffer(_name(number), leaf.clone())

    def forward(self, x: Tensor) -> Tensor:
        leaves = {path: self.get_buffer(_name(number)) for number, path in enumerate(self._paths)}
        return self._method.presented(tree.from_leaves(leaves, self._hollows), x)


def _name(number: int) -> str:
    """A buffer's name may have no dots, and a model's entries do."""
    return f"entry{number}"
