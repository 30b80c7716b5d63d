"""FedDecorr."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from torch import Tensor

from fewfed.losses.features import feature_correlation, flat_features
from fewfed.method import Batch, Context, Preset
from fewfed.methods.fedavg import FedAvg
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedDecorr(FedAvg):
    """Shi et al., ICLR 2023: penultimate features of a batch are kept uncorrelated, so that they do not collapse.

    Loss: CE + weight·L, L the mean squared off-diagonal entry of ZᵀZ over B with Z standardised, as in the authors'
    code, to which the weight 0.1 belongs. Preset `printed`: ‖corr‖²_F / d² of the paper's equation, about B times
    smaller. Both come from the B×B product, so no d×d matrix is made; a batch of one row adds nothing. FLea's port
    reads a layer that only MobileNetV2 has (register C23); here it is the input of the last stage of any network.
    """

    name = "feddecorr"
    family = "local objective"
    paper = "Shi et al., Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous FL, ICLR 2023"
    presets = MappingProxyType({"printed": Preset({"form": "printed"}, note="the equation, not the authors' code")})
    needs_stages = True
    neutral = MappingProxyType({"weight": 0.0})

    weight: float = setting(0.1, "weight of the decorrelation; authors 0.1", ge=0)
    form: Literal["released", "printed"] = setting("released", "scale of the authors' code, or of the equation")

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        features = ctx.net.apply(work, batch.x, stop=ctx.net.penultimate)
        output = ctx.net.apply(work, features, start=ctx.net.penultimate)
        penalty = feature_correlation(flat_features(features), self.form)
        return {"task": ctx.task.loss(output, batch.y), "decorrelate": self.weight * penalty}
