"""FedDyn."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed import tree
from fewfed.method import Batch, Combined, Context, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import EQUAL, Clock, Phase
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedDyn(FedAvg):
    """Acar et al., ICLR 2021: a dynamic regulariser makes local and global stationary points agree (Algorithm 1).

    Local loss L − <h_k, w_k> + alpha/2·‖w_k − w‖², written as one square around w + h_k/alpha, which differs by a
    constant; then h_k ← h_k − alpha·(w_k − w). Server: h ← h − alpha·(1/N)·Σ(w_k − w), w ← mean w_k − h/alpha, uniform
    over the cohort. The model that predicts is mean w_k, as the authors report it; w is what clients receive. BatchNorm
    statistics are averaged. Deviations: the authors' code also divides alpha by a client's relative size and clips
    gradients at 10 (the training setting `clip`).
    """

    name = "feddyn"
    family = "drift correction"
    paper = "Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021"
    neutral = None
    corrects_drift = True

    alpha: float = setting(0.1, "weight of the regulariser; authors 0.01 to 0.1, FedFA's release 0.1", gt=0)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, keeps_state=True, weight=EQUAL),)

    def server_init(self, setup: Setup) -> Tree:
        models = {"model": setup.net.model(), "mean": setup.net.model()}
        return {**models, "clients": torch.tensor(setup.clients, dtype=setup.dtype), **self.client_init(setup)}

    def client_init(self, setup: Setup) -> Tree:
        return {"slope": tree.zeros_like(setup.net.model()["params"])}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        target = tree.add(ctx.shared["model"]["params"], tree.scale(ctx.state["slope"], 1 / self.alpha))
        return {**super().loss(work, ctx, batch), "dynamic": self.alpha / 2 * tree.sq_distance(work["params"], target)}

    def end(self, work: Tree, ctx: Context) -> Report:
        moved = tree.sub(work["params"], ctx.shared["model"]["params"])
        slope = tree.sub(ctx.state["slope"], tree.scale(moved, self.alpha))
        return Report(super().end(work, ctx).upload, {"slope": slope}, 1.0)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        mean = combined.values["model"]
        moved = tree.sub(mean["params"], server["model"]["params"])
        taking_part = len(combined.clients) / server["clients"]
        slope = tree.sub(server["slope"], tree.scale(moved, self.alpha * taking_part))
        params = tree.sub(mean["params"], tree.scale(slope, 1 / self.alpha))
        return {**server, "model": {**mean, "params": params}, "mean": mean, "slope": slope}

    def predictor(self, server: Tree, state: Tree) -> Tree:
        model: Tree = server["mean"]
        return model
