"""The memory order of convolution kernels while a client trains: plain, or channels last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from fewfed import tree
from fewfed.tree import Tree

Layout = Literal["auto", "plain", "channels_last"]


def has_kernels(params: Mapping[str, Any]) -> bool:
    """Whether there are kernels of convolutions, for which the two layouts differ."""
    return any(_is_kernel(leaf) for leaf in params.values())


def channels_last(params: Mapping[str, Any]) -> Tree:
    """Parameters with the kernels of convolutions channels last; activations follow their kernels."""
    # Not `contiguous`, which leaves kernels of one channel as they are.
    return {
        name: leaf.to(memory_format=torch.channels_last) if _is_kernel(leaf) else leaf for name, leaf in params.items()
    }


def in_reading_order(values: Mapping[str, Any]) -> Tree:
    """The same tree with all leaves in the usual memory order."""
    return tree.map(plain, values)


def plain(leaf: Tensor) -> Tensor:
    if leaf.dim() != 4:
        return leaf.contiguous()
    _, channels, height, width = leaf.shape
    # With one channel both orders count as contiguous, but torch still chooses its algorithm by the strides.
    in_order = leaf.stride() == (channels * height * width, height * width, width, 1)
    return leaf if in_order else leaf.clone(memory_format=torch.contiguous_format)


def _is_kernel(leaf: Tensor) -> bool:
    return leaf.dim() == 4
