"""Losses against labels that are shares of classes, divergences between predictions, and mixtures.

Pure functions of tensors that also run under `vmap`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from fewfed.fusion import fusable


def one_hot(y: Tensor, classes: int) -> Tensor:
    """Float rows with a one at the label (`torch.nn.functional.one_hot` does not vmap)."""
    return (y.unsqueeze(-1) == torch.arange(classes, device=y.device)).to(torch.get_default_dtype())


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over rows of −Σ_c target_c · log softmax(logits)_c."""
    return -(target * log_softmax(logits, -1)).sum(-1).mean()


@fusable
def kl_divergence(p: Tensor, q: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(softmax(p/τ) ‖ softmax(q/τ)) · τ², mean over rows; both arguments are logits."""
    log_p, log_q = log_softmax(p / temperature, -1), log_softmax(q / temperature, -1)
    return (log_p.exp() * (log_p - log_q)).sum(-1).mean() * temperature**2


@fusable
def mix(weight: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """weight · first + (1 − weight) · second, one weight a row."""
    weight = weight.reshape(weight.shape + (1,) * (first.dim() - weight.dim()))
    return weight * first + (1 - weight) * second
