"""FedProto."""

import math
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.losses.features import class_sums, flat_features
from fewfed.method import Batch, Combined, Context, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.networks.projector import feature_shape, feature_width
from fewfed.phase import MODEL, Clock, Combine, Phase, Role, Upload
from fewfed.settings import setting
from fewfed.tree import Tree

PROTOTYPES = MappingProxyType(
    {"means": Upload(Combine.SUM, Role.PROTOTYPES), "present": Upload(Combine.SUM, Role.COUNTS)}
)


@dataclass(frozen=True)
class FedProto(FedAvg):
    """Tan et al., AAAI 2022, combined with FedAvg: features are drawn to the global prototype of their class.

    Loss: CE + weight·mean((z − prototype of y)²) over rows whose class has a prototype. Clients send the class
    means of their penultimate features, computed after training in eval mode (the authors: running means of the last
    epoch); the server averages them unweighted over the clients that have the class (as released), from two sums, and
    keeps a prototype until the class is seen again. The authors exchange prototypes only, for models that differ
    between clients, and predict by the nearest one: preset `personal`. Averaging the models as well is a combination
    made here, to have one model.
    """

    name = "fedproto"
    family = "prototypes"
    paper = "Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, AAAI 2022"
    needs_classes = True
    needs_stages = True
    neutral = MappingProxyType({"weight": 0.0})

    weight: float = setting(1.0, "weight of the distance to prototypes; authors 1, CIFAR-10 0.1", ge=0)

    def check(self, setup: Setup) -> None:
        if not setup.task.classes:
            raise ConfigError("method 'fedproto' has one prototype a class: expected a classification task")

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, {**MODEL, **PROTOTYPES}),)

    def server_init(self, setup: Setup) -> Tree:
        classes, width = setup.task.classes, feature_width(setup.net, setup.shape)
        return {
            "model": setup.net.model(),
            "prototypes": torch.zeros(classes, width, dtype=setup.dtype),
            "known": torch.zeros(classes, dtype=setup.dtype),
        }

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "prototypes", "known")}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        features = ctx.net.apply(work, batch.x, stop=ctx.net.penultimate)
        output = ctx.net.apply(work, features, start=ctx.net.penultimate)
        distance = (flat_features(features) - ctx.shared["prototypes"][batch.y]).square().mean(1)
        pull = (ctx.shared["known"][batch.y] * distance).mean()
        return {"task": ctx.task.loss(output, batch.y), "prototype": self.weight * pull}

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return report._replace(upload={**report.upload, **self._class_means(work, ctx)})

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        values = dict(combined.values)
        means, present = values.pop("means"), values.pop("present")
        fresh = means / present.clamp(min=1).unsqueeze(1)
        seen = present > 0
        return {
            **server,
            **values,
            "prototypes": torch.where(seen.unsqueeze(1), fresh, server["prototypes"]),
            "known": torch.maximum(server["known"], seen.to(server["known"].dtype)),
        }

    def _class_means(self, work: Tree, ctx: Context) -> Tree:
        features = flat_features(ctx.net.apply(work, ctx.data.x, stop=ctx.net.penultimate, train=False))
        sums, counts = class_sums(features, ctx.data.y, ctx.task.classes)
        return {"means": sums / counts.clamp(min=1).unsqueeze(1), "present": (counts > 0).to(sums.dtype)}


NEVER = -1e30
"""The score of a class without a prototype."""


@dataclass(frozen=True)
class PersonalFedProto(FedProto):
    """FedProto as published: only prototypes are exchanged and every client keeps a model of its own.

    A row is given to the class whose global prototype is nearest to its features (the released evaluation on a client's
    own test rows also leaves out classes it does not hold). As ‖z − p‖² is ‖z‖² minus 2 p·z − ‖p‖², a linear classifier
    of weights 2 p and biases −‖p‖² does that: what predicts is a client's model with these in place of its own
    classifier, which serves the cross-entropy in training alone.
    """

    name = "fedproto"
    variant = "personal"
    personal_model = True
    neutral = None  # type: ignore[assignment]

    def check(self, setup: Setup) -> None:
        super().check(setup)
        _classifier(setup)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, PROTOTYPES, keeps_state=True),)

    def server_init(self, setup: Setup) -> Tree:
        return {**super().server_init(setup), "nearest": _classifier(setup)}

    def client_init(self, setup: Setup) -> Tree:
        return {"model": setup.net.model()}

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("prototypes", "known")}

    def begin(self, ctx: Context) -> Tree:
        return tree.clone(ctx.state["model"])

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report(self._class_means(work, ctx), {"model": work}, ctx.weight)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        after = super().absorb(server, combined)
        weight, bias = server["nearest"]
        length = after["prototypes"].square().sum(1)
        scores = {weight: 2 * after["prototypes"], bias: torch.where(after["known"] > 0, -length, NEVER)}
        return {**after, "nearest": scores}

    def predictor(self, server: Tree, state: Tree) -> Tree:
        model: Tree = state["model"]
        return {**model, "params": {**model["params"], **server["nearest"]}}


def _classifier(setup: Setup) -> Tree:
    """Weight and bias of a last stage that is linear in the penultimate features, as they are at the start."""
    net, classes = setup.net, setup.task.classes
    shape = feature_shape(net, setup.shape)
    model = net.model()
    last = {name: leaf for name, leaf in model["params"].items() if name.startswith(f"{net.stages[-1]}.")}
    found = dict(sorted(last.items(), key=lambda item: -item[1].dim()))
    if [tuple(leaf.shape) for leaf in found.values()] == [(classes, math.prod(shape)), (classes,)]:
        weight, bias = found.values()
        rows = torch.arange(3 * math.prod(shape), dtype=net.dtype).sin().reshape(3, *shape)
        scores = net.apply(model, rows, start=net.penultimate, train=False)
        if torch.allclose(scores, rows.flatten(1) @ weight.T + bias, rtol=1e-4, atol=1e-4):
            return found
    raise ConfigError(
        f"preset 'personal' of method 'fedproto' predicts by the nearest prototype, which takes a last stage that is "
        f"one linear layer with bias: stage '{net.stages[-1]}' of network '{net.name}' is not"
    )
