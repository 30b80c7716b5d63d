"""FedLC."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.losses import one_hot
from fewfed.method import Batch, Context, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedLC(FedAvg):
    """Zhang et al., ICML 2022: logits are calibrated by the client's own class counts before the cross-entropy.

    Loss: CE(logits − tau·(n_c + floor)^(−1/4), y). The plain soft-max with the true class in the denominator, as in
    the released re-implementations; with `denominator = others` the sum goes over the other classes only, as the paper
    prints it, and the loss has no lower bound. A class the client lacks is shifted by 31.6·tau with the default floor,
    as in FLea's code: practically removed, and finite. Counts are the client's, not the loader's (register C11).
    """

    name = "fedlc"
    family = "local objective"
    paper = "Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022"
    needs_classes = True
    neutral = MappingProxyType({"tau": 0.0})

    tau: float = setting(1.0, "strength of the calibration; FLea's authors kept the best of 0.1 to 1", ge=0)
    denominator: Literal["all", "others"] = setting(
        "all", "classes summed over: all, or as printed all but the true one"
    )
    floor: float = setting(1e-6, "added to every count, so that a missing class stays finite", gt=0)

    def check(self, setup: Setup) -> None:
        if not setup.task.classes:
            raise ConfigError("method 'fedlc' calibrates by class counts: expected a classification task")

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        output = ctx.net.apply(work, batch.x)
        shift = self.tau * (ctx.counts.to(output.dtype) + self.floor) ** -0.25
        calibrated = output - shift
        if self.denominator == "all":
            return {"task": ctx.task.loss(calibrated, batch.y)}
        true = one_hot(batch.y, ctx.task.classes).bool()
        others = calibrated.masked_fill(true, -torch.inf).logsumexp(1)
        return {"task": (others - (calibrated * true).sum(1)).mean()}
