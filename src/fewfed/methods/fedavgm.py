"""FedAvgM."""

from dataclasses import dataclass
from types import MappingProxyType

from fewfed import tree
from fewfed.method import Combined, Preset, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.server_optim import momentum_step
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedAvgM(FedAvg):
    """Hsu et al. 2019: momentum on the server. v ← beta·v + (w − Σ p_k·w_k), w ← w − lr·v.

    Momentum acts on parameters; BatchNorm statistics are the plain average (FedFA's release puts it on everything).
    Preset `released` is the value in FedFA's code, which is FedAvg in all but name. beta = 0 with lr = 1 is FedAvg.
    """

    name = "fedavgm"
    family = "server optimiser"
    paper = (
        "Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019"
    )
    presets = MappingProxyType({"released": Preset({"beta": 0.01}, note="FedFA's released code")})
    neutral = MappingProxyType({"beta": 0.0})

    beta: float = setting(0.9, "server momentum; authors 0.9, FedFA's release 0.01", ge=0, lt=1)
    server_lr: float = setting(1.0, "the server's step; authors 1", gt=0)

    def server_init(self, setup: Setup) -> Tree:
        model = setup.net.model()
        return {"model": model, "velocity": tree.zeros_like(model["params"])}

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        mean = combined.values["model"]
        params, velocity = momentum_step(
            server["model"]["params"], mean["params"], server["velocity"], self.beta, self.server_lr
        )
        return {**server, "model": {**mean, "params": params}, "velocity": velocity}
