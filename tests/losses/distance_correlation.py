"""Distance correlation in plain Python, from its definition (Székely et al. 2007; Székely and Rizzo 2014).

Written apart from `fewfed.losses`, one sum at a time. `test_losses.py` holds it against values of the package dcor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Matrix = list[list[float]]


def distances(rows: Sequence[Sequence[float]]) -> Matrix:
    return [[math.dist(a, b) for b in rows] for a in rows]


def doubly_centred(d: Matrix) -> Matrix:
    n = len(d)
    row = [sum(d[i]) / n for i in range(n)]
    column = [sum(d[i][j] for i in range(n)) / n for j in range(n)]
    whole = sum(row) / n
    return [[d[i][j] - row[i] - column[j] + whole for j in range(n)] for i in range(n)]


def u_centred(d: Matrix) -> Matrix:
    n = len(d)
    row = [sum(d[i]) / (n - 2) for i in range(n)]
    column = [sum(d[i][j] for i in range(n)) / (n - 2) for j in range(n)]
    whole = sum(sum(line) for line in d) / ((n - 1) * (n - 2))
    return [[0.0 if i == j else d[i][j] - row[i] - column[j] + whole for j in range(n)] for i in range(n)]


def correlation(x: Sequence[Sequence[float]], y: Sequence[Sequence[float]]) -> float:
    """R, not its square."""
    a, b = doubly_centred(distances(x)), doubly_centred(distances(y))
    return math.sqrt(_product(a, b) / math.sqrt(_product(a, a) * _product(b, b)))


def unbiased_squared_correlation(x: Sequence[Sequence[float]], y: Sequence[Sequence[float]]) -> float:
    a, b = u_centred(distances(x)), u_centred(distances(y))
    return _product(a, b) / math.sqrt(_product(a, a) * _product(b, b))


def _product(a: Matrix, b: Matrix) -> float:
    """The common divisor of covariance and variances cancels in their ratio."""
    return math.fsum(p * q for left, right in zip(a, b, strict=True) for p, q in zip(left, right, strict=True))
