"""FedRobust."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed import tree
from fewfed.method import Batch, Context, Differentiate, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import Clock, Phase
from fewfed.settings import setting
from fewfed.tree import Tree

AFFINE = ("stretch", "shift")


@dataclass(frozen=True)
class FedRobust(FedAvg):
    """Reisizadeh et al., NeurIPS 2020: training against the worst affine distortion of each client's inputs.

    min_w max_{L,d} loss(w; L·x + d, y) − lam·(‖L − I‖² + ‖d‖²): each batch one step of the local optimiser down in w
    and one of plain gradient ascent, of size `ascent`, in the client's own (L, d), from one gradient. Only w is
    averaged; (L, d) stay at the client and start from its last participation. Deviations: one stretch (L − I) and one
    shift for each channel of the input, a full L being infeasible for images; lam and the step size are recommended
    values. Details beyond the objective are unverified.
    """

    name = "fedrobust"
    family = "local objective"
    paper = "Reisizadeh et al., Robust Federated Learning: The Case of Affine Distribution Shifts, NeurIPS 2020"
    neutral = MappingProxyType({"ascent": 0.0})
    another_aim = "it minimises the loss of distorted inputs"

    weight: float = setting(1.0, "lam, price of a distortion (recommended)", ge=0)
    ascent: float = setting(0.01, "step size of the distortion, whatever optimiser w has (recommended); 0 = none", ge=0)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, keeps_state=True),)

    def client_init(self, setup: Setup) -> Tree:
        shape = (setup.shape[0], *(1 for _ in setup.shape[1:]))
        return {name: torch.zeros(shape, dtype=setup.dtype) for name in AFFINE}

    def begin(self, ctx: Context) -> Tree:
        return {**super().begin(ctx), **tree.clone(ctx.state)}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        stretch, shift = (work["params"].get(name, work[name]) for name in AFFINE)
        price = stretch.square().sum() + shift.square().sum()
        seen = batch._replace(x=batch.x * (1 + stretch) + shift)
        return {**super().loss(work, ctx, seen), "distortion": -self.weight * price}

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        # One gradient in all of them; the local optimiser, which may rescale what it is given, sees only the model's.
        own = {name: work[name] for name in AFFINE}
        slope, terms = differentiate({**work, "params": {**work["params"], **own}})
        with torch.no_grad():
            for name, leaf in own.items():
                leaf.add_(slope[name], alpha=self.ascent)
        return {name: slope[name] for name in work["params"]}, terms

    def end(self, work: Tree, ctx: Context) -> Report:
        return super().end(work, ctx)._replace(state={name: work[name] for name in AFFINE})
