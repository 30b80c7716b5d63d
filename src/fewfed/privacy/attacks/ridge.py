"""Ridge regression in closed form, its penalty chosen on rows it is not fitted to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

PENALTIES = tuple(10.0**power for power in range(-7, 4))
"""Beside the mean eigenvalue of the kernel, which is 1."""
_LEAST = 1e-6
"""A deviation below this part of the largest is that of a constant."""


@dataclass(frozen=True)
class Standard:
    """Columns with mean 0 and deviation 1; those that are constant stay 0."""

    mean: Tensor
    scale: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Standard:
        values = values.double()
        deviation = values.std(0, correction=0)
        flat = deviation <= _LEAST * deviation.max().clamp(min=torch.finfo(torch.double).tiny)
        return cls(values.mean(0), torch.where(flat, 0.0, 1 / torch.where(flat, 1.0, deviation)))

    @classmethod
    def centred(cls, values: Tensor) -> Standard:
        """With mean 0 and the deviations that they have: where a column says more, the more it differs."""
        return cls(values.double().mean(0), torch.ones(values.shape[1], dtype=torch.double, device=values.device))

    def __call__(self, values: Tensor) -> Tensor:
        return (values.double() - self.mean) * self.scale


Scaling = Callable[[Tensor], Standard]
"""How columns are made comparable: `Standard.of` or `Standard.centred`."""


@dataclass(frozen=True)
class Ridge:
    """A linear map from standardised columns to centred targets."""

    standard: Standard
    rows: Tensor | None
    """The standardised rows it was fitted to, where they are fewer than columns: products with them are looked at, and
    the map itself, which may be very wide, is never written down."""
    factors: Tensor
    offset: Tensor
    penalty: float

    def __call__(self, z: Tensor) -> Tensor:
        return (_products(self.standard(z), self.rows) @ self.factors + self.offset).to(z.dtype)

    @property
    def weights(self) -> Tensor:
        """The map, columns first."""
        return self.factors if self.rows is None else self.rows.T @ self.factors


def _products(a: Tensor, rows: Tensor | None) -> Tensor:
    return a if rows is None else a @ rows.T


def fitted(z: Tensor, x: Tensor, penalty: float, scaling: Scaling = Standard.of) -> Ridge:
    """The ridge regression of `x` on `z` (rows first) with one penalty."""
    return _Solved.of(z, x, scaling).at(penalty)


def chosen(z: Tensor, x: Tensor, held_z: Tensor, held_x: Tensor, scaling: Scaling = Standard.of) -> Ridge:
    """The one with the penalty that is best on held-out rows."""
    solved = _Solved.of(z, x, scaling)
    errors = solved.errors(held_z, held_x)
    return solved.at(min(PENALTIES, key=lambda penalty: errors[penalty]))


@dataclass(frozen=True)
class _Solved:
    """The eigenvectors of the smaller of the two products, so that every further penalty is cheap."""

    standard: Standard
    offset: Tensor
    values: Tensor
    vectors: Tensor
    right: Tensor
    rows: Tensor | None

    @classmethod
    def of(cls, z: Tensor, x: Tensor, scaling: Scaling) -> _Solved:
        standard, offset = scaling(z), x.double().mean(0)
        a, b = standard(z), x.double() - offset
        if len(a) <= a.shape[1]:  # Dual: w = A' (A A' + p)^-1 b.
            values, vectors = torch.linalg.eigh(a @ a.T)
            return cls(standard, offset, values, vectors, vectors.T @ b, a)
        values, vectors = torch.linalg.eigh(a.T @ a)  # Primal: w = (A' A + p)^-1 A' b.
        return cls(standard, offset, values, vectors, vectors.T @ (a.T @ b), None)

    def at(self, penalty: float) -> Ridge:
        return Ridge(self.standard, self.rows, self.vectors @ self._shrunk(penalty), self.offset, penalty)

    def errors(self, z: Tensor, x: Tensor) -> dict[float, float]:
        """Of each penalty the squared error on other rows, per number."""
        along, wanted = _products(self.standard(z), self.rows) @ self.vectors, x.double() - self.offset
        found = {each: float((along @ self._shrunk(each) - wanted).square().mean()) for each in PENALTIES}
        return {each: error if math.isfinite(error) else math.inf for each, error in found.items()}

    def _shrunk(self, penalty: float) -> Tensor:
        values = self.values.clamp(min=0)
        # Where columns depend on each other both products have zeros, which rounding must not turn into large numbers.
        size = values.mean().clamp(min=torch.finfo(torch.double).tiny)
        return self.right / (values + penalty * size)[:, None]


def cross_fitted(
    z: Tensor, x: Tensor, penalty: float, seed: int, folds: int = 4, scaling: Scaling = Standard.of
) -> Tensor:
    """What ridge regressions say of rows that they were not fitted to: what they say of others is as far off."""
    found = torch.empty_like(x)
    folds = min(folds, len(z))
    order = torch.randperm(len(z), generator=torch.Generator().manual_seed(seed)).to(z.device)
    for part in order.tensor_split(folds) if folds > 1 else []:
        rest = torch.ones(len(z), dtype=torch.bool, device=z.device)
        rest[part] = False
        found[part] = fitted(z[rest], x[rest], penalty, scaling)(z[part])
    return found if folds > 1 else x.mean(0).expand_as(x).clone()


def cross_chosen(z: Tensor, x: Tensor, seed: int, scaling: Scaling = Standard.of) -> Ridge:
    """The ridge regression with the penalty that is best on rows left out in turn: for few rows."""
    return best_view([z], x, seed, scaling=scaling)[1]


def best_view(
    views: Sequence[Tensor], x: Tensor, seed: int, folds: int = 4, scaling: Scaling = Standard.of
) -> tuple[int, Ridge]:
    """Which of several ways to look at the same rows is best on rows left out in turn, and its ridge regression."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed)).to(x.device)
    errors = {(number, penalty): 0.0 for number in range(len(views)) for penalty in PENALTIES}
    for part in order.tensor_split(min(folds, len(x))):
        rest = torch.ones(len(x), dtype=torch.bool, device=x.device)
        rest[part] = False
        if not bool(rest.any()):
            break
        for number, z in enumerate(views):
            for penalty, error in _Solved.of(z[rest], x[rest], scaling).errors(z[part], x[part]).items():
                errors[number, penalty] += error * len(part)
    number, penalty = min(errors, key=lambda each: errors[each])
    return number, fitted(views[number], x, penalty, scaling)
