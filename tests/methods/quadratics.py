"""Clients whose losses are parabolas, run through the real engine: every step has a closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.job import Job
from fewfed.method import Method
from fewfed.methods.registry import choose
from fewfed.plan import Plan
from fewfed.tasks.regression import Regression
from fewfed.training import Training
from fewfed.tree import Tree
from support import linear_network

UNEQUAL = {"targets": (0.0, 1.0), "curvatures": (1.0, 5.0), "lr": 0.1, "epochs": 5}
"""The optimum of the sum is 5/6; five steps of FedAvg settle at r2/(r1 + r2) = 0.703, r = 1 − (1 − lr·curvature)^5."""

UNEQUAL_OPTIMUM = 5 / 6
UNEQUAL_FEDAVG = (1 - 0.5**5) / ((1 - 0.9**5) + (1 - 0.5**5))


class Parabolas(GeneratedFederation):
    """Client k has sizes[k] equal rows, so that its loss is curvatures[k] · (w − targets[k])² / 2."""

    def __init__(self, targets: Sequence[float], sizes: Sequence[int], curvatures: Sequence[float]) -> None:
        def make(client: int) -> Examples:
            x = torch.full((sizes[client], 1), curvatures[client] ** 0.5, dtype=torch.float64)
            return Examples(x, x[:, 0] * targets[client])

        test = Examples(torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))
        super().__init__(len(targets), make, test, classes=0)

    def counts(self, client: int) -> Tensor:
        return torch.zeros(0, dtype=torch.long)


def parabolas(
    method: str | Method,
    targets: Sequence[float],
    *,
    sizes: Sequence[int] | None = None,
    curvatures: Sequence[float] | None = None,
    lr: float = 0.5,
    epochs: int = 2,
    seed: int = 0,
    **training: Any,
) -> Job:
    """A job that starts at w = 0 and takes one full-batch step an epoch, with plain SGD unless told otherwise."""
    sizes = sizes or [1] * len(targets)
    federation = Parabolas(targets, sizes, curvatures or [1.0] * len(targets))
    chosen = choose(method).method if isinstance(method, str) else method
    values = {"optimizer": "sgd", "lr_decay": 0.0, "lr_floor": 0.0, "batch": max(sizes), **training}
    local = Training(lr=lr, epochs=epochs, **values)
    return Job(chosen, linear_network([[0.0]]), Regression(), federation, local, Plan(seed, local.batch))


def weight(model: Tree) -> float:
    return float(model["params"]["head.weight"])
