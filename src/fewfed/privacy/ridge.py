"""Ridge regression from what is sent to what it was made of: the simplest attacker, and a strong one."""

from __future__ import annotations

import torch
from torch import Tensor

_STRENGTHS = (1e-10, 1e-5, 1e-3, 1e-2, 1e-1, 1.0)
"""Regularisation, as a part of the mean of the Gram matrix's diagonal."""
_LEAST_VARIANCE = 0.01
"""Features of less than this part of the mean variance are not scaled up to the others."""
_DIRECTIONS = 16
"""Wide targets are looked at in so many random directions while the regularisation is chosen."""


class Ridge:
    """Fitted on pairs, row by row. How much it is regularised is chosen on the first `held` of them, which must have
    no rows behind them that the others have too: who has seen a row needs no regularisation for it."""

    def __init__(self, sent: Tensor, source: Tensor, held: int) -> None:
        # In the space of the rows where there are fewer of them than features: wide tables stay in single precision.
        dual = sent.shape[1] > len(sent)
        self._dtype = torch.float32 if dual else torch.float64
        sent, source = sent.to(self._dtype), source.double()
        self._mean, self._centre = sent.mean(0), source.mean(0)
        variance = (sent - self._mean).square().mean(0)
        # A feature that hardly ever differs from zero must not become the largest where it does.
        least = (_LEAST_VARIANCE * variance.mean()).clamp(min=torch.finfo(self._dtype).tiny)
        self._scale = variance.clamp(min=least).sqrt()
        z, target = self._scaled(sent), source - self._centre
        self._rows = z if dual else None
        aim = _narrowed(target)
        if dual:
            whole = (z @ z.T).double()
            asked, gram, goal = whole[:held, held:], whole[held:, held:], aim[held:]
        else:
            whole, asked = z.T @ z, z[:held]
            gram, goal = z[held:].T @ z[held:], z[held:].T @ aim[held:]
        errors = [_error(asked @ _solved(gram, goal, strength), aim[:held]) for strength in _STRENGTHS]
        best, goal = errors.index(min(errors)), target if dual else z.T @ target
        # The same row twice leaves the whole without a solution that its parts have: then more regularisation.
        tried = ((strength, _solved(whole, goal, strength)) for strength in _STRENGTHS[best:])
        self.strength, self._weights = next(
            (found for found in tried if bool(torch.isfinite(found[1]).all())), (float("inf"), torch.zeros_like(goal))
        )

    def __call__(self, sent: Tensor) -> Tensor:
        z = self._scaled(sent.to(self._dtype))
        return self._centre + (z if self._rows is None else (z @ self._rows.T).double()) @ self._weights

    def _scaled(self, sent: Tensor) -> Tensor:
        return (sent - self._mean) / self._scale


def _narrowed(target: Tensor) -> Tensor:
    if target.shape[1] <= _DIRECTIONS:
        return target
    random = torch.Generator().manual_seed(0)
    return target @ torch.randn(target.shape[1], _DIRECTIONS, generator=random, dtype=target.dtype).to(target.device)


def _solved(gram: Tensor, aim: Tensor, strength: float) -> Tensor:
    """NaN where rounding leaves no solution."""
    size = strength * gram.diagonal().mean()
    factor = torch.linalg.cholesky_ex(gram + size * torch.eye(len(gram), dtype=gram.dtype, device=gram.device))
    return torch.cholesky_solve(aim, factor.L) if not int(factor.info) else torch.full_like(aim, torch.nan)


def _error(found: Tensor, truth: Tensor) -> float:
    error = float((found - truth).square().sum())
    return error if error == error else float("inf")
