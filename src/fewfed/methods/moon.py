"""MOON."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from torch import Tensor

from fewfed.losses.features import contrast, flat_features
from fewfed.method import Batch, Context, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.network import Activation
from fewfed.networks.projector import feature_width, projector, projector_weights
from fewfed.phase import Clock, Phase
from fewfed.settings import setting
from fewfed.tree import Tree

STAGE = "moon-projection"
WIDTH = 256


@dataclass(frozen=True)
class Moon(FedAvg):
    """Li et al., CVPR 2021: local features are drawn to the global model's and away from the client's previous ones.

    Loss: CE + mu·−log(e^{cos(z,z_g)/tau} / (e^{cos(z,z_g)/tau} + e^{cos(z,z_prev)/tau})), z_g from the received
    model and z_prev from the client's own last local model (the initial one before its first turn), both frozen and in
    eval mode. Deviation: the authors insert a projection d → d → 256 *before* the classifier, which makes another
    network than the one being compared. `head="none"` contrasts the penultimate features themselves;
    `head="projection"` learns and averages that projection beside the classifier, which does not read it.
    """

    name = "moon"
    family = "local objective"
    paper = "Li et al., Model-Contrastive Federated Learning, CVPR 2021"
    needs_stages = True
    neutral = MappingProxyType({"mu": 0.0})

    mu: float = setting(5.0, "weight of the contrast; authors 5 for CIFAR-10, grid 0.001 to 10", ge=0)
    tau: float = setting(0.5, "temperature; authors 0.5", gt=0)
    head: Literal["none", "projection"] = setting("none", "what is contrasted: features, or a projection of them")

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, keeps_state=True),)

    def server_init(self, setup: Setup) -> Tree:
        return self.client_init(setup)

    def client_init(self, setup: Setup) -> Tree:
        model = setup.net.model()
        if self.head == "projection":
            width = feature_width(setup.net, setup.shape)
            first = projector_weights(STAGE, width, (width, WIDTH), setup.plan.fixed(0, STAGE))
            model = {**model, "params": {**model["params"], **first}}
        return {"model": model}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        cut = ctx.net.penultimate
        features = ctx.net.apply(work, batch.x, stop=cut)
        received, previous = (
            self._represent(model, ctx.net.apply(model, batch.x, stop=cut, train=False))
            for model in (ctx.shared["model"], ctx.state["model"])
        )
        contrasted = contrast(self._represent(work, features), received, previous, self.tau)
        output = ctx.net.apply(work, features, start=cut)
        return {"task": ctx.task.loss(output, batch.y), "contrast": self.mu * contrasted}

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return report._replace(state={"model": report.upload["model"]})

    def predictor(self, server: Tree, state: Tree) -> Tree:
        model = server["model"]
        return {**model, "params": {name: v for name, v in model["params"].items() if not name.startswith(STAGE)}}

    def _represent(self, model: Tree, features: Activation) -> Tensor:
        z = flat_features(features)
        if self.head == "none":
            return z
        projected: Tensor = projector(STAGE, z.shape[1], (z.shape[1], WIDTH)).apply(model, z)
        return projected
