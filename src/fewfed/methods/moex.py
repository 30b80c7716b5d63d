"""MoEx."""

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed.method import Batch, Context, Preset, Setup
from fewfed.methods.parts.augmentation import LabelMixing, with_mixed_labels
from fewfed.methods.parts.statistics import partners
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree

EPS = 1e-5


@dataclass(frozen=True)
class MoEx(LabelMixing):
    """Li et al., CVPR 2021: moment exchange. Features take the positional moments of a partner, and part of its label.

    With probability q a batch, at one stage: mean and deviation over the channels of every position (variance + 1e-5)
    are removed and those of a permuted partner put in; L = lam·L(y) + (1−lam)·L(y_partner). The moments keep their
    gradients. Population variance (unverified). FedFA, which compares with it, gives no values: 0.9 and 0.5 here.
    """

    name = "moex"
    paper = "Li et al., On Feature Normalization and Data Augmentation, CVPR 2021"
    presets = MappingProxyType(
        {
            "imagenet": Preset({"lam": 0.9, "q": 1.0}, note="authors' ImageNet values"),
            "cifar": Preset({"lam": 0.5, "q": 0.25}, note="authors' CIFAR values"),
        }
    )
    needs_stages = True
    neutral = MappingProxyType({"q": 0.0})
    another_aim = "it mixes the targets of rows whose inputs have opposite signs"

    lam: float = setting(0.9, "weight of a row's own label", ge=0, le=1)
    q: float = setting(0.5, "probability of the exchange, for each batch", ge=0, le=1)
    stage: str = setting("", "where; empty = after the first stage")

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if self.stage:
            setup.net.position(self.stage)

    def own_draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return {"order": random.permutation(size), "on": random.uniform(1)[0] < self.q}

    def augmented(self, own: Tree, ctx: Context, batch: Batch) -> tuple[Context, Batch]:
        place = ctx.net.stage_at(self.stage) if self.stage else ctx.net.stages[0]

        def tap(stage: str, x: Tensor) -> Tensor:
            if stage != place:
                return x
            mean, deviation = x.mean(1, keepdim=True), (x.var(1, correction=0, keepdim=True) + EPS).sqrt()
            order = partners(own["order"], len(x))
            return torch.where(own["on"], (x - mean) / deviation * deviation[order] + mean[order], x)

        weight = torch.where(own["on"], self.lam, 1.0)
        mixed = with_mixed_labels(ctx, own["order"], weight)
        return dataclasses.replace(mixed, net=ctx.net.tapped(tap)), batch
