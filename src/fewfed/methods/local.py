"""Local training."""

from dataclasses import dataclass

from fewfed import tree
from fewfed.method import Context, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import NOTHING, Clock, Phase
from fewfed.tree import Tree


@dataclass(frozen=True)
class Local(FedAvg):
    """No federation: every client trains alone from the common initial model and keeps what it learnt."""

    name = "local"
    family = "reference"
    paper = "none: the lower reference"
    personal_model = True
    neutral = None

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, NOTHING, keeps_state=True),)

    def client_init(self, setup: Setup) -> Tree:
        return {"model": setup.net.model()}

    def broadcast(self, server: Tree) -> Tree:
        return {}

    def begin(self, ctx: Context) -> Tree:
        return tree.clone(ctx.state["model"])

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({}, {"model": work}, ctx.weight)

    def predictor(self, server: Tree, state: Tree) -> Tree:
        model: Tree = state["model"]
        return model
