"""FedData."""

import math
from dataclasses import dataclass

from fewfed.data.examples import Examples
from fewfed.method import Context, Report
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import Clock, Cohort, Combine, Phase
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedData(FedAvg):
    """Zhao et al. 2018 as FLea compares with it: raw rows are shared once and every client trains on its own and those.

    Before round 1 each client uploads a fixed random fraction of its raw pairs; everybody receives the whole pool and
    trains plain cross-entropy on D_k followed by the pool (a client's own shared rows count twice, since the pool
    carries no names). Weights in the mean remain n_k. An upper reference, not a private method.
    """

    name = "feddata"
    family = "data sharing"
    paper = "Zhao et al., Federated Learning with Non-IID Data, 2018; as in Xia et al., FLea, KDD 2024"
    steps_differ = "an epoch runs over the client's rows and the whole shared pool"
    neutral = None

    share: float = setting(0.1, "fraction of each client's rows that is uploaded", gt=0, le=1)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        rows = {"x": Combine.CONCAT, "y": Combine.CONCAT}
        setup = (Phase("setup", 0, rows, Cohort.ALL),) if clock.first else ()
        return (*setup, Phase("train", clock.epochs))

    def broadcast(self, server: Tree, phase: Phase) -> Tree:
        return {} if phase.name == "setup" else {name: server[name] for name in ("model", "x", "y")}

    def data(self, ctx: Context) -> Examples:
        if ctx.phase.name == "setup":
            return ctx.data
        return ctx.data.join(Examples(ctx.shared["x"], ctx.shared["y"]))

    def begin(self, ctx: Context) -> Tree:
        return {} if ctx.phase.name == "setup" else super().begin(ctx)

    def end(self, work: Tree, ctx: Context) -> Report:
        if ctx.phase.name == "train":
            return super().end(work, ctx)
        count = max(1, math.floor(self.share * ctx.size))
        chosen = ctx.data.rows(ctx.plan.fixed(ctx.client, "shared rows").choice(ctx.size, count, replace=False))
        return Report({"x": chosen.x, "y": chosen.y}, {}, float(ctx.size))
