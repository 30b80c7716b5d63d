"""FLea as its released code computes it."""

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from fewfed.losses import kl_divergence, one_hot, released_distance_correlation, soft_cross_entropy
from fewfed.method import Batch, Context
from fewfed.methods.flea import FLea, Share
from fewfed.methods.parts import cuts
from fewfed.methods.parts.buffer import mixed_with_buffer
from fewfed.methods.parts.watched import correlations
from fewfed.phase import Clock, Phase
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FLeaOfficial(FLea):
    """The repository XTxiatong/FLea at b85be07, not the published loss (spec 0, 1.4 to 1.9, register C1 to C11).

    Every step: CE on the raw batch by a second full pass, soft CE on the mix, KL(global ‖ local) on *unmixed* buffer
    rows, and lambda2(t)·R with lambda2 = max(3 − 0.1·t, 1). Round 1: three times the epochs, CE + KL/2 on the raw batch
    + 3·R. The shared rows are drawn with replacement, floor(share·n) of them, possibly none. The buffer batch and the
    local one are cut to the shorter. Adam forgets its moments at every step, the rate falls linearly, cohorts are the
    legacy generator's. For the user to set: batch 64, 64, 32 and 10, 15, 5 epochs for CIFAR-10, UrbanSound8K, UCI-HAR.
    """

    name = "flea"
    variant = "official"
    own_training = MappingProxyType(
        {
            "optimizer": "adam",
            "reset": "step",
            "batch_rule": "released",
            "sampling": "released",
            "lr": 1e-3,
            "lr_rule": "linear",
            "lr_decay": 0.018,
            "lr_floor": 1e-4,
        }
    )
    steps_differ = "the first round trains three times the epochs, and a client's last batch may be drawn twice"
    neutral = None  # type: ignore[assignment]

    pairing: Literal["cycle", "truncate"] = setting(
        "truncate", "a buffer row for every local row, or the shorter of both"
    )

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        share = dataclasses.replace(super().phases(clock)[1], does=ShareWithRepeats(self))
        return (Phase("train", self, (3 if clock.first else 1) * clock.epochs), share)

    def weight_at(self, round: int) -> float:
        """lambda2 of a round counted from 0: 3, 2.9, ... 1.1, then 1."""
        return max(self.decorrelate - 0.1 * round, min(self.decorrelate, 1.0))

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        # Lambda2 as a tensor: a step that is recorded once can be used in every round.
        lambda2 = torch.tensor(self.weight_at(ctx.clock.round), dtype=ctx.dtype)
        return {"lambda2": lambda2, **super().draw(random, ctx, size)}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        cut = cuts.position(ctx, self.cut)
        features = ctx.net.apply(work, batch.x, stop=cut)
        relation = released_distance_correlation(batch.x, features)
        output = ctx.net.apply(work, batch.x)
        terms = {
            "task": ctx.task.loss(output, batch.y),
            "decorrelate": batch.drawn["lambda2"] * relation,
            **correlations(relation, features, batch),
        }
        if "row" not in batch.drawn:
            return {**terms, "distil": 0.5 * self.distil * self._divergence(output, batch.x, ctx, 0)}
        mixed, target = mixed_with_buffer(features, one_hot(batch.y, ctx.task.classes), ctx, batch)
        others = ctx.shared["features"][batch.drawn["row"]]
        return {
            **terms,
            "mixed": soft_cross_entropy(ctx.net.apply(work, mixed, start=cut), target),
            "distil": self.distil * self._divergence(ctx.net.apply(work, others, start=cut), others, ctx, cut),
        }

    def _divergence(self, student: Tensor, seen: Tensor, ctx: Context, start: int) -> Tensor:
        return kl_divergence(ctx.net.apply(ctx.shared["model"], seen, start=start, train=False), student)


class ShareWithRepeats(Share):
    """The rows are drawn with replacement."""

    def chosen(self, ctx: Context) -> Tensor:
        count = int(self.method.share * ctx.size)
        return ctx.plan.fixed(ctx.client, "shared rows").choice(ctx.size, count, replace=True)
