"""Features unlike their inputs."""

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from torch import Tensor

from fewfed.losses import dependence
from fewfed.method import Batch, Context
from fewfed.methods.parts.protection import CutProtection, Guarded
from fewfed.phase import Phase
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class Decorrelated(CutProtection):
    """Vepakomma et al., NoPeek: training also lowers the distance correlation of inputs and the features that are sent.

    weight · R(x, f) beside the loss of any method that shares features, wherever it trains the model that predicts;
    what is sent stays as it is. R is the biased distance correlation within the batch (0 below four rows), as in FLea's
    Eq. 5; NoPeek prints the logarithm of the distance covariance. A method may have such a term of its own: then this
    one comes on top. The features are computed by a pass of their own up to the cut.
    """

    name = "decorrelated"
    paper = (
        "Vepakomma et al., NoPeek: Information Leakage Reduction to Share Activations in Distributed Deep Learning, \
ICDM Workshops 2020"
    )
    neutral = MappingProxyType({"weight": 0.0})
    computes = False
    another_aim = "it also keeps features unlike their inputs"

    weight: float = setting(3.0, "weight of the correlation", ge=0)
    form: Literal["dcor", "trace", "rv"] = setting("dcor", "distance correlation, or a trace form")
    power: Literal[1, 2] = setting(1, "distance correlation R (1) or R² (2)")

    @property
    def acts(self) -> bool:
        return self.weight > 0

    def guarded(self, phase: Phase) -> Phase:
        return dataclasses.replace(phase, does=Unlike(self, phase))


class Unlike(Guarded[Decorrelated]):
    """Training with the correlation as one term more."""

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        terms, wrapper = super().loss(work, ctx, batch), self.wrapper
        relation = dependence(batch.x, self.features(work, ctx, batch), wrapper.form, wrapper.power)
        return {**terms, wrapper.name: wrapper.weight * relation}
