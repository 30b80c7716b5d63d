"""Loss terms that several methods share, as pure functions of tensors."""

from fewfed.losses.dependence import (
    centred_distances,
    dependence,
    distance_correlation,
    released_distance_correlation,
    squared_distances,
    trace_correlation,
    unbiased_distance_correlation,
)
from fewfed.losses.soft_labels import kl_divergence, mix, one_hot, soft_cross_entropy

__all__ = [
    "centred_distances",
    "dependence",
    "distance_correlation",
    "kl_divergence",
    "mix",
    "one_hot",
    "released_distance_correlation",
    "soft_cross_entropy",
    "squared_distances",
    "trace_correlation",
    "unbiased_distance_correlation",
]
