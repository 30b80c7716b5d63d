"""FedSAM."""

from dataclasses import dataclass
from types import MappingProxyType

from fewfed import tree
from fewfed.method import Batch, Context, Differentiate
from fewfed.methods.fedavg import FedAvg
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedSAM(FedAvg):
    """Qu et al., ICML 2022; Caldarola et al., ECCV 2022: sharpness-aware local steps, averaged as FedAvg does.

    Two passes a batch: e = rho·g/(‖g‖ + 1e-12) with one norm over all parameters, then the gradient at w + e is
    applied at w. BatchNorm statistics follow the first pass only. Twice the cost of FedAvg; rho = 0 is FedAvg. FedFA's
    release has Adam below it on two data sets; plain SGD is the authors' choice (a training setting).
    """

    name = "fedsam"
    family = "local objective"
    paper = "Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022"
    neutral = MappingProxyType({"rho": 0.0})

    rho: float = setting(0.05, "length of the ascent step; FedFA's release 0.05", ge=0)

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        here, terms = differentiate(work)
        ascent = self.rho / (tree.dot(here, here).sqrt() + 1e-12)
        # Everything that the first pass may have updated in place is copied: the second must leave no trace.
        untouched = tree.clone({name: part for name, part in work.items() if name != "params"})
        there, _ = differentiate({**untouched, "params": tree.add(work["params"], tree.scale(here, ascent))})
        return there, terms
