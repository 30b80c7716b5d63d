"""FedData."""

from dataclasses import dataclass

from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.method import Context
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.asked import Asked
from fewfed.methods.parts.buffer import fixed_rows
from fewfed.methods.parts.sharing import SendsRows
from fewfed.phase import Clock, Cohort, Phase, Role, shared_rows
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
        rows = shared_rows(self.share, x=Role.INPUTS, y=Role.LABELS)
        setup = (Phase("setup", Rows(self), uploads=rows, cohort=Cohort.ALL),) if clock.first else ()
        return (*setup, Phase("train", self, clock.epochs))

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "x", "y")}

    def data(self, ctx: Context) -> Examples:
        return ctx.data.join(Examples(ctx.shared["x"], ctx.shared["y"]))


class Rows(SendsRows, Asked[FedData]):
    """Before round 1 every client uploads some of its rows as they are."""

    def chosen(self, ctx: Context) -> Tensor:
        return fixed_rows(ctx, self.method.share)

    def sends(self, work: Tree, ctx: Context, rows: Tensor) -> Tree:
        return {"x": ctx.data.x[rows], "y": ctx.data.y[rows]}
