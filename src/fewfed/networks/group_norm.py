"""The same network with GroupNorm in place of BatchNorm: what it makes of a row depends on that row alone."""

from __future__ import annotations

import copy

from torch import nn

from fewfed.network import Network
from fewfed.torch_private import BatchNorm

SUFFIX = "-gn"
_MOST = 32
"""Groups, as in Wu & He, Group Normalization, ECCV 2018."""
_LEAST = 4
"""Channels in a group: a single one of a vector would be its own mean, and nothing would pass."""


def with_group_norm(net: Network) -> Network:
    """A network of the same stages, first weights and cut. BatchNorm's running statistics have no counterpart."""
    stages = {stage: _without_batch_norm(copy.deepcopy(net.module(stage))) for stage in net.stages}
    return Network(f"{net.name}{SUFFIX}", stages, net.cut)


def groups_of(channels: int) -> int:
    """The most groups of equal size, up to 32, that have at least four channels each; one where there are fewer."""
    return max(
        each for each in range(1, _MOST + 1) if channels % each == 0 and (channels >= each * _LEAST or each == 1)
    )


def _without_batch_norm(module: nn.Module) -> nn.Module:
    if isinstance(module, BatchNorm):
        return nn.GroupNorm(groups_of(module.num_features), module.num_features, module.eps, module.affine)
    for name, part in module.named_children():
        setattr(module, name, _without_batch_norm(part))
    return module
