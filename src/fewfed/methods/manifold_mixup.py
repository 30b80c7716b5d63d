"""Manifold MixUp."""

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed.losses import mix
from fewfed.method import Batch, Context, Setup
from fewfed.methods.parts.augmentation import LabelMixing, with_mixed_labels
from fewfed.methods.parts.statistics import partners
from fewfed.network import Network
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree

INPUT = "(input)"


@dataclass(frozen=True)
class ManifoldMixUp(LabelMixing):
    """Verma et al., ICML 2019: MixUp at the input or after one of the first stages, drawn uniformly for each batch.

    Hidden states and the loss of both labels are mixed with one lam ~ Beta(a, a) a batch; everywhere else lam is 1.
    BatchNorm behind the drawn place sees mixed features. Deviation: where there are skips only the main path is mixed.
    """

    name = "manifold-mixup"
    paper = "Verma et al., Manifold Mixup: Better Representations by Interpolating Hidden States, ICML 2019"
    needs_stages = True
    neutral = MappingProxyType({"alpha": 0.0})

    alpha: float = setting(2.0, "lam ~ Beta(alpha, alpha); authors 2.0 (CIFAR); 0 = no mixing", ge=0)
    stages: tuple[str, ...] = setting((), "stages that may be drawn beside the input; empty = the first two")

    def check(self, setup: Setup) -> None:
        super().check(setup)
        for stage in self.stages:
            setup.net.position(stage)

    def own_draw(self, random: Random, ctx: Context, size: int) -> Tree:
        places = self._places(ctx.net)
        lam = random.beta(self.alpha, 1)[0] if self.alpha else torch.ones(())
        drawn = random.integers(len(places), 1)[0]
        at = {place: torch.where(drawn == number, lam, 1.0) for number, place in enumerate(places)}
        return {"order": random.permutation(size), "lam": lam, "at": at}

    def augmented(self, own: Tree, ctx: Context, batch: Batch) -> tuple[Context, Batch]:
        def tap(stage: str, x: Tensor) -> Tensor:
            return mix(own["at"][stage], x, x[partners(own["order"], len(x))]) if stage in own["at"] else x

        mixed = with_mixed_labels(ctx, own["order"], own["lam"])
        return dataclasses.replace(mixed, net=ctx.net.tapped(tap)), batch._replace(x=tap(INPUT, batch.x))

    def _places(self, net: Network) -> tuple[str, ...]:
        named = tuple(net.stage_at(cut) for cut in self.stages)
        return (INPUT, *(named or net.stages[: min(2, net.penultimate)]))
