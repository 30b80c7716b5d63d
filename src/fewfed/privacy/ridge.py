"""Ridge regression from what is sent to what it was made of: the simplest attacker, and a strong one."""

from __future__ import annotations

import torch
from torch import Tensor

_STRENGTHS = (1e-10, 1e-5, 1e-3, 1e-2, 3e-2, 1e-1, 0.3, 1.0)
"""Regularisation, as a part of the mean of the Gram matrix's diagonal."""
_STRONGER = (3.0, 10.0, 30.0, 100.0, 1000.0)
"""Tried in turn while more is better: where there is little beside noise, the mean is the best guess."""
_LEAST_VARIANCE = 0.01
"""Features of less than this part of the mean variance are not scaled up to the others."""
_DIRECTIONS = 16
"""Wide targets are looked at in so many random directions while the regularisation is chosen."""


class Ridge:
    """Fitted on pairs, row by row. How much it is regularised is chosen on the first `held` of them, which must have
    no rows behind them that the others have too: who has seen a row needs no regularisation for it.

    `quiet`: the same pairs without the noise that was added to what is sent. Who adds noise to rows of its own only to
    learn from them takes it for something said of them, where rows are few; who learns without it, and regularises as
    is best for rows with it, does not. Whichever is better on the first pairs, as they are sent, is taken.
    """

    def __init__(self, sent: Tensor, source: Tensor, held: int, quiet: Tensor | None = None) -> None:
        # In the space of the rows where there are fewer of them than features: wide tables stay in single precision.
        self._dual = sent.shape[1] > len(sent)
        self._dtype = torch.float32 if self._dual else torch.float64
        sent, source = sent.to(self._dtype), source.double()
        self._centre = source.mean(0)
        variance = sent.var(0, correction=0)
        # A feature that hardly ever differs from zero must not become the largest where it does.
        least = (_LEAST_VARIANCE * variance.mean()).clamp(min=torch.finfo(self._dtype).tiny)
        self._scale = variance.clamp(min=least).sqrt()
        target = source - self._centre
        aim = _narrowed(target)
        views = [sent] if quiet is None else [sent, quiet.to(self._dtype)]
        errors = [self._errors(view, sent[:held], aim) for view in views]
        learnt, best = min(zip(views, errors, strict=True), key=lambda each: min(each[1]))
        self._mean = learnt.mean(0)
        z = self._scaled(learnt)
        self._rows = z if self._dual else None
        whole, goal = ((z @ z.T).double(), target) if self._dual else (z.T @ z, z.T @ target)
        # The same row twice leaves the whole without a solution that its parts have: then more regularisation.
        strengths = (*_STRENGTHS, *_STRONGER)[best.index(min(best)) :]
        tried = ((strength, _solved(whole, goal, strength)) for strength in strengths)
        self.strength, self._weights = next(
            (found for found in tried if bool(torch.isfinite(found[1]).all())), (float("inf"), torch.zeros_like(goal))
        )

    def __call__(self, sent: Tensor) -> Tensor:
        z = self._scaled(sent.to(self._dtype))
        return self._centre + (z if self._rows is None else (z @ self._rows.T).double()) @ self._weights

    def _errors(self, learnt: Tensor, asked: Tensor, aim: Tensor) -> list[float]:
        """Of each strength the error on the first rows, as they are sent, after learning from the others."""
        held, self._mean = len(asked), learnt.mean(0)
        z, x = self._scaled(learnt[held:]), self._scaled(asked)
        if self._dual:
            x, gram, goal = (x @ z.T).double(), (z @ z.T).double(), aim[held:]
        else:
            gram, goal = z.T @ z, z.T @ aim[held:]
        found = [_error(x @ _solved(gram, goal, strength), aim[:held]) for strength in _STRENGTHS]
        for strength in _STRONGER:
            if found[-1] > min(found):
                break
            found.append(_error(x @ _solved(gram, goal, strength), aim[:held]))
        return found

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
