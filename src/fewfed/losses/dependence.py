"""How much features tell of their inputs within a batch: distance correlation and its relatives.

Pure functions of tensors that also run under `vmap`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fewfed.fusion import fusable

FLOOR = 1e-7
"""Squared distances below this count as zero: rounding, not distance."""


def squared_distances(x: Tensor) -> Tensor:
    """‖x_i − x_j‖² of flattened rows, never negative. Rows are centred first: the Gram form then cancels less."""
    flat = x.flatten(1)
    flat = flat - flat.mean(0, keepdim=True).detach()
    gram = flat @ flat.T
    square = torch.diagonal(gram)
    return (square.unsqueeze(0) + square.unsqueeze(1) - 2 * gram).clamp(min=0)


def centred_distances(x: Tensor) -> Tensor:
    """Euclidean distances of rows with row, column and grand means removed; safe to differentiate at equal rows."""
    return _centre(_safe_root(squared_distances(x)))


def distance_correlation(x: Tensor, f: Tensor, power: int = 1) -> Tensor:
    """Székely's biased distance correlation R of two samples (power 1) or R² (power 2): FLea, KDD Eq. 5 and 8.

    0 with zero gradient where either sample is constant.
    """
    a, b = centred_distances(x), centred_distances(f)
    covariance, scale = (a * b).mean(), (a * a).mean() * (b * b).mean()
    known = scale > 0
    squared = torch.where(known, covariance / torch.where(known, scale, torch.ones_like(scale)).sqrt(), 0.0)
    return squared if power == 2 else _safe_root(squared.clamp(min=0))


def released_distance_correlation(x: Tensor, f: Tensor) -> Tensor:
    """R as FLea's released code computes it: distances floored at √1e-7, 1e-7 added inside every root."""
    a, b = (_centre(squared_distances(t).clamp(min=FLOOR).sqrt()) for t in (x, f))
    xf, xx, ff = (((p * q).mean() + FLOOR).sqrt() for p, q in ((a, b), (a, a), (b, b)))
    return xf / ((xx + FLOOR) * (ff + FLOOR)).sqrt()


def unbiased_distance_correlation(x: Tensor, f: Tensor) -> Tensor:
    """Bias-corrected R² (U-statistic, Székely and Rizzo 2014), for reports: near 0 for independent samples, may be
    negative. 0 where it is not defined: below 4 rows, or where either sample is constant."""
    if len(x) < 4:
        return torch.zeros((), dtype=torch.float64, device=f.device)
    a, b = (_u_centre(_safe_root(squared_distances(t.double()))) for t in (x, f))
    scale = (a * a).sum() * (b * b).sum()
    known = scale > 0
    return torch.where(known, (a * b).sum() / torch.where(known, scale, torch.ones_like(scale)).sqrt(), 0.0)


def trace_correlation(x: Tensor, f: Tensor, form: str = "trace", centre: bool = True) -> Tensor:
    """FLea's ICLR decorrelation Tr(XᵀFFᵀX) over its scale: 'trace' ‖X‖²‖F‖² (as printed), 'rv' √(Tr(XᵀX)² Tr(FᵀF)²).

    Columns are centred first unless told otherwise; the equation prints no centring, and without it two independent
    samples of positive numbers are related. Evaluated on the two B×B Gram matrices, so the size of the features does
    not matter.
    """
    x, f = x.flatten(1), f.flatten(1)
    if centre:
        x, f = x - x.mean(0, keepdim=True), f - f.mean(0, keepdim=True)
    gram_x, gram_f = x @ x.T, f @ f.T
    if form == "trace":
        scale = torch.diagonal(gram_x).sum() * torch.diagonal(gram_f).sum()
    else:
        scale = _safe_root(gram_x.square().sum() * gram_f.square().sum(), floor=0.0)
    known = scale > 0
    return torch.where(known, (gram_x * gram_f).sum() / torch.where(known, scale, torch.ones_like(scale)), 0.0)


@fusable
def dependence(x: Tensor, f: Tensor, form: str = "dcor", power: int = 1, centred: bool = True) -> Tensor:
    """How much features tell of their inputs within a batch: `dcor` (power 1 or 2), `trace` or `rv` (centred or not).

    Below 4 rows every form is near 1 or undefined whatever the features are, so it is 0 there.
    """
    if len(x) < 4:
        return f.new_zeros(())
    return distance_correlation(x, f, power) if form == "dcor" else trace_correlation(x, f, form, centred)


def _centre(d: Tensor) -> Tensor:
    return d - d.mean(0, keepdim=True) - d.mean(1, keepdim=True) + d.mean()


def _u_centre(d: Tensor) -> Tensor:
    n = len(d)
    centred = d - d.sum(0, keepdim=True) / (n - 2) - d.sum(1, keepdim=True) / (n - 2) + d.sum() / ((n - 1) * (n - 2))
    return centred * (1 - torch.eye(n, dtype=d.dtype, device=d.device))


def _safe_root(value: Tensor, floor: float = FLOOR) -> Tensor:
    """Square root that is 0 with zero gradient at and below the floor, where the true gradient is infinite."""
    positive = value > floor
    return torch.where(positive, value, torch.ones_like(value)).sqrt() * positive
