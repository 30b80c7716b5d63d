"""FedRS."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.method import Batch, Context, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedRS(FedAvg):
    """Li and Zhan, KDD 2021: a restricted soft-max, which spares the weights of classes the client does not have.

    Loss: CE(s·logits, y), s = 1 for classes the client holds and alpha for the others. By the client's label set:
    FLea's port masks by the labels of a batch, trains one batch an epoch and clips (register C19), which is not this
    method and is not offered.
    """

    name = "fedrs"
    family = "local objective"
    paper = "Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, 2021"
    needs_classes = True
    neutral = MappingProxyType({"alpha": 1.0})

    alpha: float = setting(0.5, "factor on logits of classes the client lacks; authors 0.5, 1 = FedAvg", ge=0, le=1)

    def check(self, setup: Setup) -> None:
        if not setup.task.classes:
            raise ConfigError("method 'fedrs' scales logits by class: expected a classification task")

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        output = ctx.net.apply(work, batch.x)
        return {"task": ctx.task.loss(output * torch.where(ctx.counts > 0, 1.0, self.alpha), batch.y)}
