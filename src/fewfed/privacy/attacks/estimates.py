"""Estimates of mutual information, row by row, so that their spread can be told. In nats."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_RIDGES = (1e-6, 1e-4, 1e-2, 1.0, 100.0)
_FLOOR = 1e-6


def gaussian_information(x: Tensor, sent: Tensor, x_new: Tensor, sent_new: Tensor) -> Tensor:
    """log q(x | sent) − log q(x) of every new row, where q(x | sent) is normal around a ridge regression and q(x) is
    normal, both fitted to (x, sent) alone. Its mean estimates I(x; sent), and is it where both are jointly normal.

    The covariance of the errors comes from rows that the regression was not fitted to.
    """
    x, sent, x_new, sent_new = (each.flatten(1).double().cpu() for each in (x, sent, x_new, sent_new))
    centre, spread = sent.mean(0), sent.std(0).clamp(min=1e-12)
    sent, sent_new = (sent - centre) / spread, (sent_new - centre) / spread
    half = len(x) // 2
    errors, penalty = min(
        ((_crossed(x, sent, half, each), each) for each in _RIDGES), key=lambda found: float(found[0].square().mean())
    )
    predicted = _ridge(sent, x, penalty)(sent_new)
    given = _log_normal(x_new - predicted, errors)
    return given - _log_normal(x_new - x.mean(0), x - x.mean(0))


def _crossed(x: Tensor, sent: Tensor, half: int, penalty: float) -> Tensor:
    """Errors on each half of a regression fitted to the other."""
    first, second = _ridge(sent[half:], x[half:], penalty), _ridge(sent[:half], x[:half], penalty)
    return torch.cat([x[:half] - first(sent[:half]), x[half:] - second(sent[half:])])


def _ridge(z: Tensor, x: Tensor, penalty: float) -> Callable[[Tensor], Tensor]:
    """Linear regression with an intercept and a penalty in units of the rows' own size."""
    middle, mean = z.mean(0), x.mean(0)
    a, b = z - middle, x - mean
    size = penalty * a.square().sum(1).mean().clamp(min=1e-12)
    weights: Tensor
    if len(a) <= a.shape[1]:  # The smaller of two systems.
        weights = a.T @ torch.linalg.solve(a @ a.T + size * torch.eye(len(a), dtype=a.dtype), b)
    else:
        weights = torch.linalg.solve(a.T @ a + size * torch.eye(a.shape[1], dtype=a.dtype), a.T @ b)
    return lambda new: mean + (new - middle) @ weights


def _log_normal(values: Tensor, fitted_to: Tensor) -> Tensor:
    """The log density of rows under a centred normal distribution; with few rows for its columns the covariance is
    drawn to its diagonal."""
    rows, columns = fitted_to.shape
    covariance = fitted_to.T @ fitted_to / rows
    diagonal = covariance.diagonal()
    shrink = columns / (columns + rows)
    mixed = (1 - shrink) * covariance + torch.diag(shrink * diagonal + _FLOOR * diagonal.mean().clamp(min=1e-12))
    factor = torch.linalg.cholesky(mixed)
    white = torch.linalg.solve_triangular(factor, values.T, upper=False)
    log_det = 2 * factor.diagonal().log().sum()
    found: Tensor = -0.5 * (white.square().sum(0) + log_det + columns * math.log(2 * math.pi))
    return found


def principal(rows: Tensor, most: int) -> Tensor:
    """Directions in which some rows differ most, as (columns, at most `most`): of fewer numbers there is less, never
    more, information."""
    flat = rows.flatten(1).double().cpu()
    centred = flat - flat.mean(0)
    count = min(most, *centred.shape)
    values: Tensor
    directions: Tensor
    _, values, directions = torch.linalg.svd(centred, full_matrices=False)
    kept = int((values[:count] > 1e-6 * values[0].clamp(min=1e-12)).sum())
    return directions[: max(1, kept)].T


def info_nce(messages: Tensor, secrets: Tensor, messages_new: Tensor, secrets_new: Tensor) -> Tensor:
    """The terms of InfoNCE on new clients; the mean is, in expectation, a lower bound of I(message; secret), and never
    above the log of their number (van den Oord et al. 2018).

    The critic is how well a ridge regression of secrets on messages, fitted to other clients, fits the pair.
    """
    half = len(messages) // 2
    errors, penalty = min(
        ((_crossed(secrets, messages, half, each), each) for each in _RIDGES),
        key=lambda found: float(found[0].square().mean()),
    )
    said = _ridge(messages, secrets, penalty)(messages_new)
    scale = errors.square().mean().clamp(min=1e-12)
    scores = -torch.cdist(said, secrets_new).square() / (2 * scale)
    return scores.diagonal() - scores.logsumexp(1) + math.log(len(said))
