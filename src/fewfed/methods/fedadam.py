"""FedAdam."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed import tree
from fewfed.method import Combined, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.server_optim import adaptive_step
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedAdam(FedAvg):
    """Reddi et al., ICLR 2021 (FedOpt, Algorithm 2): Adam on the server, with D = Σ p_k·(w_k − w) as its gradient.

    m ← b1·m + (1−b1)·D, v ← b2·v + (1−b2)·D², w ← w + lr·m/(√v + tau), v_0 = tau², no bias correction. Parameters
    only; BatchNorm statistics are the plain average.
    """

    name = "fedadam"
    family = "server optimiser"
    paper = "Reddi et al., Adaptive Federated Optimization, ICLR 2021"
    neutral = None

    server_lr: float = setting(0.01, "eta, the server's step; authors tuned it, 0.01 to 0.1 is common", gt=0)
    beta1: float = setting(0.9, "first moment; authors 0.9", ge=0, lt=1)
    beta2: float = setting(0.99, "second moment; authors 0.99", ge=0, lt=1)
    tau: float = setting(1e-3, "adaptivity: smaller is more adaptive; authors 1e-3", gt=0)

    def server_init(self, setup: Setup) -> Tree:
        model = setup.net.model()
        second = tree.map(lambda leaf: torch.full_like(leaf, self.tau**2), model["params"])
        return {"model": model, "first": tree.zeros_like(model["params"]), "second": second}

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        mean = combined.values["model"]
        moved = tree.sub(mean["params"], server["model"]["params"])
        first = tree.map(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, server["first"], moved)
        second = tree.map(lambda v, d: self.second_moment(v, d.square()), server["second"], moved)
        params = adaptive_step(server["model"]["params"], first, second, self.server_lr, self.tau)
        return {**server, "model": {**mean, "params": params}, "first": first, "second": second}

    def second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square
