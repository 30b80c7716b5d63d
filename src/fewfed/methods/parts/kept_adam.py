"""Adam whose moments lie in a method's own trees: for a network that is trained on over rounds.

The local optimiser begins anew every round. A method that goes on where it stopped keeps its moments beside the
parameters, returns `direction` from `gradient`, and asks for plain SGD.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from fewfed import tree
from fewfed.tree import Tree

PLAIN_STEPS: Mapping[str, Any] = MappingProxyType(
    {"optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0, "clip": 0.0}
)
"""What a phase sets of its training, so that steps go as far as the direction says."""

BETAS = (0.9, 0.999)
EPS = 1e-8


def fresh_moments(params: Tree) -> Tree:
    """Those before the first step."""
    zeros = tree.map(torch.zeros_like, params)
    # In double precision: 1 − 0.999 in single has lost a third of its digits.
    return {"first": zeros, "second": tree.clone(zeros), "steps": torch.zeros((), dtype=torch.float64)}


@torch.no_grad()
def direction(moments: Tree, params: Tree, slope: Tree, weight_decay: float) -> Tree:
    """Where Adam's next step goes, for a learning rate of 1; the moments are updated in place."""
    steps = moments["steps"].add_(1)
    unbias = [1 / (1 - beta**steps) for beta in BETAS]
    found: Tree = {}
    for name, leaf in params.items():
        gradient = slope[name] + weight_decay * leaf
        first = moments["first"][name].lerp_(gradient, 1 - BETAS[0])
        second = moments["second"][name].lerp_(gradient.square(), 1 - BETAS[1])
        size = (second * unbias[1].to(leaf.dtype)).sqrt() + EPS
        found[name] = first * unbias[0].to(leaf.dtype) / size
    return found
