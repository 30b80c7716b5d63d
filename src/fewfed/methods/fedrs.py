"""FedRS."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from fewfed.method import Batch, Context, Preset, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.network import Network
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedRS(FedAvg):
    """Li and Zhan, KDD 2021: a restricted soft-max, which spares the weights of classes the client does not have.

    Loss: CE(s·logits, y), s = 1 for classes the client holds and alpha for the others. By the client's label set:
    FLea's port masks by the labels of a batch, trains one batch an epoch and clips (register C19), which is not this
    method and is not offered. Preset `released`, the authors' code: graded scales s_c = alpha + (1 − alpha)·n_c/max n,
    n the client's class counts, and a classifier without bias (ours is 0 and stays 0).
    """

    name = "fedrs"
    family = "local objective"
    paper = "Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, 2021"
    needs_classes = True
    needs_stages = True
    presets = MappingProxyType({"released": Preset({"scale": "graded", "bias": False})})
    neutral = MappingProxyType({"alpha": 1.0})

    alpha: float = setting(0.5, "factor on logits of classes the client lacks; authors 0.5, 1 = FedAvg", ge=0, le=1)
    scale: Literal["present", "graded"] = setting(
        "present", "1 where the client has a class, or by how many rows it has"
    )
    bias: bool = setting(True, "whether the classifier has a bias, where the network's has one")

    def server_init(self, setup: Setup) -> Tree:
        server = super().server_init(setup)
        for name in self._biases(setup.net, server["model"]["params"]):
            server["model"]["params"][name].zero_()
        return server

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        params = work["params"]
        still = {name: params[name].detach() for name in self._biases(ctx.net, params)}
        output = ctx.net.apply({**work, "params": {**params, **still}}, batch.x)
        return {"task": ctx.task.loss(output * self._scales(ctx.counts), batch.y)}

    def _scales(self, counts: Tensor) -> Tensor:
        if self.scale == "present":
            return torch.where(counts > 0, 1.0, self.alpha)
        return self.alpha + (1 - self.alpha) * counts / counts.max()

    def _biases(self, net: Network, params: Tree) -> list[str]:
        """The biases that are to stay 0: the classifier's, which is the last of the last stage."""
        last = [name for name in params if name.startswith(f"{net.stages[-1]}.") and name.endswith("bias")]
        return [] if self.bias else last[-1:]
