"""FedProx."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from fewfed import tree
from fewfed.method import Batch, Context, Preset
from fewfed.methods.fedavg import FedAvg
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedProx(FedAvg):
    """Li et al., MLSys 2020, Eq. 2: the local loss plus mu/2 · ‖w − w_global‖² over all trainable parameters.

    mu = 0 is FedAvg. FLea's released code sums un-squared norms of single tensors instead: `form="norm-sum"`.
    """

    name = "fedprox"
    family = "local objective"
    paper = "Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020"
    presets = MappingProxyType({"released": Preset({"form": "norm-sum", "mu": 0.001}, note="FLea's CIFAR scripts")})
    neutral = MappingProxyType({"mu": 0.0})

    mu: float = setting(0.01, "weight of the proximal term; FLea's authors tried 0.1, 0.01, 0.001", ge=0)
    form: Literal["squared", "norm-sum"] = setting("squared", "squared distance, or the released sum of norms")

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return {**super().loss(work, ctx, batch), "proximal": self.mu / 2 * self._distance(work, ctx)}

    def _distance(self, work: Tree, ctx: Context) -> Tensor:
        here, there = work["params"], ctx.shared["model"]["params"]
        if self.form == "squared":
            return tree.sq_distance(here, there)
        return torch.stack([(here[name] - there[name]).norm() for name in here]).sum()
