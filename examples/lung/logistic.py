"""Logistic regression, as one would begin with on a table of a few hundred patients."""

from torch import nn


def build(shape: tuple[int, ...], classes: int) -> nn.Linear:
    return nn.Linear(shape[0], classes)
