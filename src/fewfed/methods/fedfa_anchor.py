"""FedFA by feature anchors, another method of that name."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fewfed.errors import ConfigError
from fewfed.losses import one_hot
from fewfed.method import Batch, Context, Preset, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.statistics import vector_width
from fewfed.phase import MODEL, Clock, Combine, Phase, Role, Upload
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedFAAnchor(FedAvg):
    """Zhou, Zhang & Tsang 2024: features are drawn to anchors that all clients share, one for each class.

    L = CE + lam·(1/C)·Σ_i ‖f_i − a_{y_i}‖²/count(y_i), and the head is calibrated on the anchors, CE(head(a_c), c).
    Both terms keep the anchors that were received for the whole local training. What is uploaded moves meanwhile: after
    each epoch a_c <- keep·a_c + (1−keep)·(mean feature of class c in that epoch) for the classes present. Server:
    sample-weighted mean of model and anchors. Deviations: calibration is a term of the same step, not an Adam step of
    its own after it; class means are over rows (the release divides by all batches, which shrinks rare classes).
    """

    name = "fedfa-anchor"
    family = "feature alignment"
    paper = "Zhou, Zhang & Tsang, FedFA: Federated Learning with Feature Anchors, IEEE TMC 2024"
    needs_classes = True
    needs_stages = True
    presets = MappingProxyType(
        {
            "released": Preset(
                training={
                    "optimizer": "sgd",
                    "lr": 0.01,
                    "lr_decay": 0.01,
                    "weight_decay": 1e-3,
                    "epochs": 5,
                    "batch": 64,
                }
            )
        }
    )
    neutral = MappingProxyType({"weight": 0.0, "calibrate": 0.0})

    weight: float = setting(0.1, "lam, pull towards the anchors; authors 0.1", ge=0)
    calibrate: float = setting(1.0, "weight of the classifier's loss on the anchors", ge=0)
    keep: float = setting(0.5, "part of an anchor that stays at each update; authors 0.5", ge=0, le=1)

    def check(self, setup: Setup) -> None:
        if not setup.task.classes:
            raise ConfigError("method 'fedfa-anchor' keeps an anchor for each class: expected a classification task")
        vector_width(setup.net, setup.shape, self.name)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, {**MODEL, "anchors": Upload(Combine.MEAN, Role.PROTOTYPES)}),)

    def server_init(self, setup: Setup) -> Tree:
        """Distinct rows of the identity; with more classes than features, random directions."""
        width, classes = vector_width(setup.net, setup.shape, self.name), setup.task.classes
        random = setup.plan.fixed(-1, "anchors").normal(classes, width)
        return {
            **super().server_init(setup),
            "anchors": torch.eye(classes, width, dtype=setup.dtype) if classes <= width else normalize(random),
        }

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "anchors")}

    def begin(self, ctx: Context) -> Tree:
        anchors = ctx.shared["anchors"].clone()
        epoch = {
            "sum": torch.zeros_like(anchors),
            "count": anchors.new_zeros(len(anchors)),
            "steps": anchors.new_zeros(()),
        }
        return {**super().begin(ctx), "anchors": anchors, "epoch": epoch}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        cut, anchors = ctx.net.penultimate, ctx.shared["anchors"]
        features = ctx.net.apply(work, batch.x, stop=cut)
        member = one_hot(batch.y, ctx.task.classes).to(features.dtype)
        distance = (features - anchors[batch.y]).square().sum(1) / member.sum(0)[batch.y]
        labels = torch.arange(ctx.task.classes, device=batch.y.device)
        terms = {
            "task": ctx.task.loss(ctx.net.apply(work, features, start=cut), batch.y),
            "anchor": self.weight * distance.sum() / ctx.task.classes,
            "calibrate": self.calibrate * ctx.task.loss(ctx.net.apply(work, anchors, start=cut), labels),
        }
        self._follow(work, features.detach(), member, ctx.steps // max(ctx.phase.epochs, 1))
        return terms

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return report._replace(upload={**report.upload, "anchors": work["anchors"]})

    def _follow(self, work: Tree, features: Tensor, member: Tensor, steps: int) -> None:
        """Count the batch; after the last one of an epoch move the anchors and start counting again."""
        anchors, epoch = work["anchors"], work["epoch"]
        with torch.no_grad():
            epoch["sum"].add_(member.T @ features)
            epoch["count"].add_(member.sum(0))
            epoch["steps"].add_(1)
            over = epoch["steps"] >= steps
            mean = epoch["sum"] / epoch["count"].clamp(min=1).unsqueeze(1)
            moves = (over & (epoch["count"] > 0)).unsqueeze(1)
            anchors.copy_(torch.where(moves, self.keep * anchors + (1 - self.keep) * mean, anchors))
            for counted in epoch.values():
                counted.mul_(~over)
