"""Comparison of trees bit for bit, where `torch.equal` would let −0 pass for 0 and no NaN for itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.tree import Tree


def differences(left: Tree, right: Tree) -> list[str]:
    """Paths at which two trees are not the same, each with what differs there."""
    ours, theirs = dict(tree.leaves(left)), dict(tree.leaves(right))
    found = [f"{path}: only on one side" for path in ours.keys() ^ theirs.keys()]
    found += [f"{path}: empty on one side only" for path in set(tree.hollows(left)) ^ set(tree.hollows(right))]
    for path in ours.keys() & theirs.keys():
        a, b = ours[path], theirs[path]
        if a.dtype != b.dtype or a.shape != b.shape:
            found.append(f"{path}: {a.dtype} {tuple(a.shape)} is not {b.dtype} {tuple(b.shape)}")
        elif not torch.equal(_bits(a), _bits(b)):
            found.append(f"{path}: values differ")
    return sorted(found)


def without_seconds(metrics: dict[str, Any]) -> dict[str, Any]:
    """What two runs of the same job must agree on."""
    return {name: value for name, value in metrics.items() if not name.endswith("seconds")}


def _bits(value: Tensor) -> Tensor:
    return value.detach().contiguous().reshape(-1).view(torch.uint8)
