"""Estimates of mutual information, row by row, so that their spread can be told. In nats."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fewfed.privacy.attacks import ridge

_SEED = 0
"""Of the order in which rows are left out: the same rows give the same number."""
_FLOOR = 1e-6


def gaussian_information(x: Tensor, sent: Tensor, x_new: Tensor, sent_new: Tensor) -> Tensor:
    """log q(x | sent) − log q(x) of every new row, where q(x | sent) is normal around a ridge regression and q(x) is
    normal, both fitted to (x, sent) alone. Its mean estimates I(x; sent), and is it where both are jointly normal.

    The covariance of the errors comes from rows that the regression was not fitted to.
    """
    x, sent, x_new, sent_new = (each.flatten(1).double().cpu() for each in (x, sent, x_new, sent_new))
    model, errors = _regressed(sent, x, ridge.Standard.of)
    given = _log_normal(x_new - model(sent_new), errors)
    return given - _log_normal(x_new - x.mean(0), x - x.mean(0))


def _regressed(z: Tensor, x: Tensor, scaling: ridge.Scaling) -> tuple[ridge.Ridge, Tensor]:
    """The ridge regression of `x` on `z`, and the errors of such ones on rows that they were not fitted to."""
    model = ridge.cross_chosen(z, x, _SEED, scaling)
    return model, x - ridge.cross_fitted(z, x, model.penalty, _SEED, scaling=scaling)


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
    # Not scaled: in what hardly differs between clients there is hardly more than noise.
    model, errors = _regressed(messages, secrets, ridge.Standard.centred)
    said = model(messages_new)
    scale = errors.square().mean().clamp(min=1e-12)
    scores = -torch.cdist(said, secrets_new).square() / (2 * scale)
    return scores.diagonal() - scores.logsumexp(1) + math.log(len(said))
