"""SCAFFOLD."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.method import Batch, Combined, Context, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.server_optim import step_towards
from fewfed.phase import EQUAL, MODEL, Clock, Combine, Phase, Role, Upload
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """Karimireddy et al., ICML 2020: control variates c, c_k cancel the drift of local steps (Algorithm 1, option II).

    Local step y ← y − η·(g − c_k + c), written as the linear term <y, c − c_k> of the loss; after K real steps
    c_k+ = c_k − c + (w − y)/(K·η). Server: w ← w + lr·mean(y − w) and c ← c + (1/N)·Σ(c_k+ − c_k); both uniform over
    the cohort, not weighted by samples. Controls cover parameters only; BatchNorm statistics are averaged. The formula
    of c_k+ holds for plain SGD alone, the default of this method: momentum, Adam and clipping are refused.
    """

    name = "scaffold"
    family = "drift correction"
    paper = "Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020"
    neutral = None
    corrects_drift = True
    own_training = MappingProxyType({"optimizer": "sgd", "momentum": 0.0, "lr": 0.05})

    server_lr: float = setting(1.0, "eta_g, the server's step; authors 1", gt=0)

    def check(self, setup: Setup) -> None:
        training = setup.training
        if training.optimizer != "sgd" or training.momentum or training.clip:
            raise ConfigError(
                f"method 'scaffold' takes a control variate from how far a client went, which is right for plain SGD "
                f"only: expected optimizer = sgd, momentum = 0 and clip = 0, not {training.optimizer}, "
                f"{training.momentum:g} and {training.clip:g}",
                key="optimizer",
            )

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        uploads = {**MODEL, "control_change": Upload(Combine.SUM, Role.CONTROL)}
        return (Phase("train", self, clock.epochs, uploads, keeps_state=True, weight=EQUAL),)

    def server_init(self, setup: Setup) -> Tree:
        clients = torch.tensor(float(setup.clients), dtype=setup.dtype)
        return {**super().server_init(setup), **self.client_init(setup), "clients": clients}

    def client_init(self, setup: Setup) -> Tree:
        return {"control": tree.zeros_like(setup.net.model()["params"])}

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "control")}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        correction = tree.sub(ctx.shared["control"], ctx.state["control"])
        return {**super().loss(work, ctx, batch), "correction": tree.dot(work["params"], correction)}

    def end(self, work: Tree, ctx: Context) -> Report:
        per_step = tree.scale(tree.sub(ctx.shared["model"]["params"], work["params"]), 1 / (ctx.steps * ctx.lr))
        change = tree.sub(per_step, ctx.shared["control"])
        upload = {**super().end(work, ctx).upload, "control_change": change}
        return Report(upload, {"control": tree.add(ctx.state["control"], change)}, 1.0)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        mean, change = combined.values["model"], combined.values["control_change"]
        params = step_towards(server["model"]["params"], mean["params"], self.server_lr)
        control = tree.add(server["control"], tree.scale(change, 1 / server["clients"]))
        return {**server, "model": {**mean, "params": params}, "control": control}
