"""MixStyle."""

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.losses import mix
from fewfed.method import Batch, Context, Setup
from fewfed.methods.parts.augmentation import Augmentation
from fewfed.methods.parts.statistics import channel_moments, has_positions, partners, spatial_stages
from fewfed.network import Network
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class MixStyle(Augmentation):
    """Zhou et al., ICLR 2021: rows of a batch exchange part of their channel means and deviations; labels stay.

    At each chosen stage, with probability p a batch: x~ = (x−mu)/sig · sig_mix + mu_mix, both statistics mixed with
    those of a random partner, lam ~ Beta(a, a) a row. mu and sig (unbiased variance + 1e-6) carry no gradient. Local;
    nothing is exchanged. In `fedfa(mixstyle)` FedFA comes first, and its statistics describe the client, not mixtures.
    """

    name = "mixstyle"
    paper = "Zhou et al., Domain Generalization with MixStyle, ICLR 2021"
    needs_stages = True
    neutral = MappingProxyType({"p": 0.0})

    p: float = setting(0.5, "probability of mixing, for each stage and batch; authors 0.5", ge=0, le=1)
    alpha: float = setting(0.1, "lam ~ Beta(alpha, alpha); authors 0.1", gt=0)
    stages: tuple[str, ...] = setting((), "where; empty = the first two stages with spatial features")

    def check(self, setup: Setup) -> None:
        super().check(setup)
        for stage in self.stages:
            setup.net.position(stage)
        if not self._stages(setup.net, setup.shape):
            raise ConfigError(
                f"method 'mixstyle' mixes statistics over positions, which network '{setup.net.name}' has none of: "
                "expected a convolutional network, or stages named with --set stages=..."
            )

    def own_draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return {
            stage: {
                "on": random.uniform(1)[0] < self.p,
                "order": random.permutation(size),
                "lam": random.beta(self.alpha, size),
            }
            for stage in self._stages(ctx.net, ctx.shape)
        }

    def augmented(self, own: Tree, ctx: Context, batch: Batch) -> tuple[Context, Batch]:
        def tap(stage: str, x: Tensor) -> Tensor:
            if stage not in own or not has_positions(x):
                return x
            order, lam = partners(own[stage]["order"], len(x)), own[stage]["lam"]
            lam = lam[torch.arange(len(x), device=x.device) % len(lam)]
            mean, deviation = (m.detach().to(x.dtype) for m in channel_moments(x, unbiased=True))
            new_mean, new_deviation = mix(lam, mean, mean[order]), mix(lam, deviation, deviation[order])
            shape = mean.shape + (1,) * (x.dim() - 2)
            plain = (x - mean.reshape(shape)) / deviation.reshape(shape)
            return torch.where(own[stage]["on"], plain * new_deviation.reshape(shape) + new_mean.reshape(shape), x)

        return dataclasses.replace(ctx, net=ctx.net.tapped(tap)), batch

    def _stages(self, net: Network, shape: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(net.stage_at(cut) for cut in self.stages) or spatial_stages(net, shape)[:2]
