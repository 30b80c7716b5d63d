"""MixUp."""

from dataclasses import dataclass
from types import MappingProxyType

import torch

from fewfed.losses import mix
from fewfed.method import Batch, Context
from fewfed.methods.parts.augmentation import LabelMixing, with_mixed_labels
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class MixUp(LabelMixing):
    """Zhang et al., ICLR 2018: inputs are mixed with a permutation of the batch, and the loss of both labels alike.

    x~ = lam·x + (1−lam)·x[perm], L = lam·L(y) + (1−lam)·L(y[perm]), one lam ~ Beta(a, a) a batch. Local to each client;
    nothing is exchanged. FedFA, which compares with it, does not give a: 0.2 is for ImageNet-like images.
    """

    name = "mixup"
    paper = "Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018"
    neutral = MappingProxyType({"alpha": 0.0})

    alpha: float = setting(0.2, "lam ~ Beta(alpha, alpha); 1.0 for CIFAR; 0 = no mixing", ge=0)

    def own_draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return {
            "order": random.permutation(size),
            "lam": random.beta(self.alpha, 1)[0] if self.alpha else torch.ones(()),
        }

    def augmented(self, own: Tree, ctx: Context, batch: Batch) -> tuple[Context, Batch]:
        x = mix(own["lam"], batch.x, batch.x[own["order"]])
        return with_mixed_labels(ctx, own["order"], own["lam"]), batch._replace(x=x)
