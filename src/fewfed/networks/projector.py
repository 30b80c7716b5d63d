"""Small heads on penultimate features, as networks whose weights join those of the model they look at."""

from __future__ import annotations

import math
from collections import OrderedDict
from functools import cache, lru_cache

import torch
from torch import Tensor, nn

from fewfed.network import Network
from fewfed.networks.shapes import Shape
from fewfed.plan import Random


@lru_cache(maxsize=16)
def feature_shape(net: Network, shape: Shape) -> Shape:
    """Shape of one row's penultimate features (their main path) for inputs of `shape`."""
    features = net.apply(net.model(), torch.zeros(1, *shape, dtype=net.dtype), stop=net.penultimate, train=False)
    main = features[0] if isinstance(features, tuple) else features
    return tuple(main.shape[1:])


def feature_width(net: Network, shape: Shape) -> int:
    """Length of one row's penultimate features, flattened."""
    return math.prod(feature_shape(net, shape))


@cache
def projector(stage: str, inputs: int, widths: Shape) -> Network:
    """Linear layers with ReLU between them, in one stage: its parameters can lie among another network's.

    Its own weights mean nothing: take them from `projector_weights`.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, (before, after) in enumerate(_pairs(inputs, widths), 1):
        if number > 1:
            layers[f"relu{number - 1}"] = nn.ReLU()
        # Without initial values, so that making the structure draws no random numbers.
        layers[f"linear{number}"] = nn.utils.skip_init(nn.Linear, before, after)  # type: ignore[no-untyped-call]
    return Network(stage, {stage: nn.Sequential(layers)})


def projector_weights(stage: str, inputs: int, widths: Shape, random: Random) -> dict[str, Tensor]:
    """First weights, uniform within ±1/√inputs of each layer as torch's own, from the plan's random."""
    weights = {}
    for number, (before, after) in enumerate(_pairs(inputs, widths), 1):
        bound = 1 / math.sqrt(before)
        weights[f"{stage}.linear{number}.weight"] = (2 * random.uniform(after, before) - 1) * bound
        weights[f"{stage}.linear{number}.bias"] = (2 * random.uniform(after) - 1) * bound
    return weights


def _pairs(inputs: int, widths: Shape) -> list[tuple[int, int]]:
    return list(zip((inputs, *widths), widths, strict=False))
