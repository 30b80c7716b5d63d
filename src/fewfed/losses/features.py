"""Loss terms on features and logits that methods beside FLea add, as pure functions that also run under `vmap`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, softplus

from fewfed.losses import kl_divergence, one_hot, squared_distances
from fewfed.network import Activation


def flat_features(activation: Activation) -> Tensor:
    """One vector a row: the main path of what passes between stages."""
    main: Tensor = activation[0] if isinstance(activation, tuple) else activation
    return main.flatten(1)


def standardised(z: Tensor, eps: float = 1e-8) -> Tensor:
    """Every column with mean 0 and unbiased variance 1; a constant column becomes 0."""
    centred = z - z.mean(0, keepdim=True)
    variance = centred.square().sum(0, keepdim=True) / (len(z) - 1)
    return centred / (variance + eps).sqrt()


def feature_correlation(z: Tensor, form: str = "released") -> Tensor:
    """How correlated the columns of z (B×d) are within a batch, from B×B products: d may be thousands.

    With C = ZᵀZ of the standardised features, 'released' is the mean of C's squared off-diagonal entries over B;
    'printed' is ‖C/(B−1)‖²_F / d², diagonal included. A single row or column has no correlation: 0.
    """
    rows, columns = z.shape
    if rows < 2 or columns < 2:
        return z.new_zeros(())
    scaled = standardised(z)
    everything = (scaled @ scaled.T).square().sum()
    if form == "printed":
        return everything / ((rows - 1) * columns) ** 2
    diagonal = scaled.square().sum(0).square().sum()
    return (everything - diagonal) / (columns * (columns - 1)) / rows


def not_true_divergence(teacher: Tensor, student: Tensor, y: Tensor, temperature: float) -> Tensor:
    """τ²·KL(teacher ‖ student) after each row's true class has been deleted from both sets of logits."""
    classes = student.shape[-1]
    others = (y.unsqueeze(-1) + torch.arange(1, classes, device=y.device)) % classes
    return kl_divergence(teacher.gather(-1, others), student.gather(-1, others), temperature)


def contrast(anchor: Tensor, positive: Tensor, negative: Tensor, temperature: float) -> Tensor:
    """Mean over rows of −log(e^{cos(a,p)/τ} / (e^{cos(a,p)/τ} + e^{cos(a,n)/τ}))."""
    margin = cosine_similarity(anchor, negative, dim=-1) - cosine_similarity(anchor, positive, dim=-1)
    return softplus(margin / temperature).mean()


def sameness(noise: Tensor, output: Tensor) -> Tensor:
    """exp(−mean_ij |z_i − z_j|·|g_i − g_j|) with root-mean-square distances: 1 where all outputs are alike."""
    return torch.exp(-(_rms_distances(noise) * _rms_distances(output)).mean())


def class_sums(z: Tensor, y: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sum of the rows of each class, and how many there are."""
    member = one_hot(y, classes).to(z.dtype)
    return member.T @ z, member.sum(0)


def _rms_distances(x: Tensor) -> Tensor:
    # The floor keeps the root's gradient finite where two rows are equal, as every row is to itself.
    return (squared_distances(x) / x.flatten(1).shape[1]).clamp(min=1e-12).sqrt()
