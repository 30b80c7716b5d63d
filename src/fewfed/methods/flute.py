"""FLUTE."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.method import Batch, Combined, Context, Method, Part, Preset, Report, Setup
from fewfed.network import Network
from fewfed.phase import NOTHING, Clock, Combine, Phase, Role, Upload
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FLUTE(Method):
    """Liu et al., ICML 2024: one shared representation, a head for each client, and heads drawn to neural collapse.

    Phase `head` trains the head on the frozen representation, phase `joint` both. Added to the task's loss:
    a1·‖WWᵀ/‖WWᵀ‖ − (C−1)^(−1/2)·(I − 11ᵀ/C)∘uuᵀ‖ with u the classes the client has, a2·‖W‖², and in `joint`
    a3·‖features‖². The representation is averaged by size. With `server_lr` the server sees heads and label sets and
    moves each head down the cohort's mean of that norm, without its factor a1; the release has that switched off.
    Deviations: the frozen representation runs in eval mode; weight decay, where set, includes biases.
    """

    name = "flute"
    family = "personal models"
    paper = "Liu et al., Federated Representation Learning in the Under-Parameterized Regime, ICML 2024"
    personal_model = True
    needs_classes = True
    needs_stages = True
    presets = MappingProxyType(
        {
            "released": Preset(
                training={
                    "optimizer": "sgd",
                    "lr": 0.01,
                    "lr_decay": 0.0,
                    "momentum": 0.5,
                    "weight_decay": 1e-4,
                    "epochs": 5,
                    "batch": 10,
                }
            )
        }
    )

    joint_epochs: int = setting(1, "local epochs that also train the representation; authors 1 of 5", ge=1)
    collapse: float = setting(0.25, "a1, pull of the heads to a simplex; authors 0.25", ge=0)
    head_decay: float = setting(0.0025, "a2, on the squared head; authors 0.0025", ge=0)
    feature_decay: float = setting(0.0005, "a3, on the squared features; authors 0.0005", ge=0)
    server_lr: float = setting(0.0, "the server's step on the heads; authors 0.5, off in the release", ge=0)

    def check(self, setup: Setup) -> None:
        weight = setup.net.model()["params"].get(_weight(setup.net))
        if weight is None or weight.dim() != 2 or weight.shape[0] != setup.task.classes:
            raise ConfigError(
                f"method 'flute' needs a linear classifier, which network '{setup.net.name}' does not end with: "
                "expected a classification task and a last stage whose weight has one row for each class"
            )

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        joint = min(self.joint_epochs, clock.epochs)
        heads = {"head": Upload(Combine.KEEP, Role.MODEL), "present": Upload(Combine.KEEP, Role.COUNTS)}
        uploads = {"representation": Upload(Combine.MEAN, Role.MODEL), **(heads if self.server_lr else {})}
        return (
            Phase("head", HeadAlone(self), clock.epochs - joint, NOTHING, keeps_state=True),
            Phase("joint", self, joint, uploads, keeps_state=True),
        )

    def server_init(self, setup: Setup) -> Tree:
        return {"representation": _split(setup.net.model(), setup.net)[0]}

    def client_init(self, setup: Setup) -> Tree:
        return {"head": _split(setup.net.model(), setup.net)[1]}

    def broadcast(self, server: Tree) -> Tree:
        return {"representation": server["representation"]}

    def begin(self, ctx: Context) -> Tree:
        return tree.clone(_joined(ctx.shared["representation"], ctx.state["head"]))

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        features = ctx.net.apply(work, batch.x, stop=ctx.net.penultimate)
        decay = {"feature_decay": self.feature_decay * features.square().sum()}
        return {**self.head_terms(work, ctx, features, batch), **decay}

    def head_terms(self, work: Tree, ctx: Context, features: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The loss as far as it depends on the head."""
        weight = work["params"][_weight(ctx.net)]
        return {
            "task": ctx.task.loss(ctx.net.apply(work, features, start=ctx.net.penultimate), batch.y),
            "collapse": self.collapse * distance_to_simplex(weight, (ctx.counts > 0).to(weight)),
            "head_decay": self.head_decay * weight.square().sum(),
        }

    def end(self, work: Tree, ctx: Context) -> Report:
        representation, head = _split(work, ctx.net)
        seen = {"head": head, "present": (ctx.counts > 0).float()} if self.server_lr else {}
        return Report({"representation": representation, **seen}, {"head": head}, ctx.weight)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        heads, present = combined.values.get("head", {}), combined.values.get("present", {})
        moved = {client: self._moved(head, present[client], len(heads)) for client, head in heads.items()}
        return {"representation": combined.values["representation"], "heads": {**server.get("heads", {}), **moved}}

    def predictor(self, server: Tree, state: Tree) -> Tree:
        return _joined(server["representation"], state["head"])

    def _moved(self, head: Tree, present: Tensor, clients: int) -> Tree:
        name = next(name for name in head if name.endswith(".weight"))
        slope = torch.func.grad(distance_to_simplex)(head[name], present)
        return {**head, name: head[name] - self.server_lr / clients * slope}


class HeadAlone(Part[FLUTE]):
    """Clients train their heads on the representation they received."""

    def broadcast(self, server: Tree) -> Tree:
        return self.method.broadcast(server)

    def personal(self, server: Tree, client: int) -> Tree:
        heads = server.get("heads", {})
        return {"head": heads[str(client)]} if str(client) in heads else {}

    def begin(self, ctx: Context) -> Tree:
        return {"params": tree.clone(ctx.personal.get("head") or ctx.state["head"]), "buffers": {}}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        features = ctx.net.apply(ctx.shared["representation"], batch.x, stop=ctx.net.penultimate, train=False)
        return self.method.head_terms(work, ctx, features, batch)

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({}, {"head": work["params"]}, ctx.weight)


def distance_to_simplex(weight: Tensor, present: Tensor) -> Tensor:
    """‖WWᵀ/‖WWᵀ‖ − (C−1)^(−1/2)·(I − 11ᵀ/C)∘uuᵀ‖ in the Frobenius norm."""
    classes = len(weight)
    gram = weight @ weight.T
    simplex = (torch.eye(classes, dtype=weight.dtype, device=weight.device) - 1 / classes) / (classes - 1) ** 0.5
    target = simplex * torch.outer(present, present)
    distance: Tensor = torch.linalg.matrix_norm(gram / (torch.linalg.matrix_norm(gram) + 1e-12) - target)
    return distance


def _joined(representation: Tree, head: Tree) -> Tree:
    return {"params": {**representation["params"], **head}, "buffers": representation["buffers"]}


def _weight(net: Network) -> str:
    return f"{net.stages[-1]}.weight"


def _split(model: Tree, net: Network) -> tuple[Tree, Tree]:
    """The representation with all buffers, and the parameters of the head."""
    prefix = f"{net.stages[-1]}."
    head = {name: value for name, value in model["params"].items() if name.startswith(prefix)}
    rest = {name: value for name, value in model["params"].items() if name not in head}
    return {"params": rest, "buffers": model["buffers"]}, head
