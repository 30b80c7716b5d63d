"""FedFA, federated feature augmentation."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.method import Batch, Combined, Context, Differentiate, Preset, Report, Setup
from fewfed.methods.parts.augmentation import Augmentation, Augmented, inner_batch
from fewfed.methods.parts.statistics import (
    feature_augmentation,
    has_positions,
    moving_average,
    normalised_gamma,
    shared_variance,
    spatial_stages,
    stage_outputs,
)
from fewfed.network import Network
from fewfed.phase import Combine, Phase, Role, Upload
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree

KEY = "fedfa"
UPLOAD = "feature_moments"
START = MappingProxyType({"mean": 0.0, "deviation": 1.0})


@dataclass(frozen=True)
class FedFA(Augmentation):
    """Zhou & Konukoglu, ICLR 2023: channel statistics get noise as wide as clients and batches differ.

    After each chosen stage, with probability p a batch: mean and deviation of every row and channel (Eq. 2) are moved
    by Gaussian noise of variance (gamma + 1) · batch variance (Eq. 3, 7 to 9). Their momentum averages (Eq. 4) are
    uploaded; gamma is the normalised variance of these between clients, per channel (Eq. 5, 6). Eq. 1
    weighs clients equally, in all methods it compares: the training's `weighting = "uniform"`. Uploads are sums and
    sums of squares of deviations from the broadcast averages, in double precision, so the server needs no single
    client's statistics. Any method can be wrapped, once: its statistics have one name.

    Deviations: population variances and eps 1e-6 (the paper prints no eps). Averages are carried from round to round
    (`carry`); Algorithm 1 resets them, which turns gamma into a counter of steps where clients differ in size. The
    released code takes one variance over all channels, so its gamma is 1: preset `released`, and `c2x` with the paper's
    variances, the control without which no gain can be credited to shared statistics. Several passes in a step share
    gate and noise, and the first pass counts for the averages.
    """

    name = "fedfa"
    family = "feature augmentation"
    paper = "Zhou & Konukoglu, FedFA: Federated Feature Augmentation, ICLR 2023"
    presets = MappingProxyType(
        {
            "r": Preset({"fixed": 0.5}, note="FedFA-R: noise of one size, nothing exchanged"),
            "c": Preset({"gamma": "zeros"}, note="FedFA-C: the batch's own variance (DSU), nothing exchanged"),
            "c2x": Preset({"gamma": "ones"}, note="control: FedFA-C with twice the variance, nothing exchanged"),
            "direct": Preset({"gamma": "raw"}, note="Direct Fusion: the variance between clients without Eq. 6"),
            "released": Preset({"gamma": "ones", "unbiased": True}, note="what the released code computes"),
        }
    )
    needs_stages = True
    neutral = MappingProxyType({"p": 0.0})

    p: float = setting(0.5, "probability of noise, for each stage and batch; authors 0.5; 0 = none", ge=0, le=1)
    momentum: float = setting(0.99, "of the averaged statistics; authors 0.99; 0 = the last batch's", ge=0, lt=1)
    stages: tuple[str, ...] = setting((), "where; empty = every stage before the network pools, flattens or decodes")
    gamma: Literal["shared", "ones", "zeros", "raw"] = setting("shared", "Eq. 6, constants, or Eq. 5 unnormalised")
    fixed: float = setting(0.0, "noise of this standard deviation instead; authors' FedFA-R 0.5; 0 = off", ge=0)
    carry: Literal["average", "reset", "debiased", "client"] = setting(
        "average", "averaged statistics at a round's start: the clients' mean, 0 and 1 (debiased or not), or one's own"
    )
    unbiased: bool = setting(False, "unbiased variances over positions and rows, as released")
    clamp: bool = setting(False, "keep noisy deviations from falling below zero")
    detach: bool = setting(False, "no gradient through the statistics")
    channel: Literal[1, -1] = setting(1, "axis of the channels; -1 for tokens (rows, tokens, channels)")

    @property
    def exchanges(self) -> bool:
        """Whether gamma comes from the clients' statistics."""
        return not self.fixed and self.gamma in ("shared", "raw")

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if any(isinstance(method, FedFA) for method in self.inner.layers):
            raise ConfigError(f"'{self.inner.label}' has FedFA's noise and statistics already: wrap it in 'fedfa' once")
        for stage in self.stages:
            setup.net.position(stage)

    def around(self, phase: Phase) -> Phase:
        if not phase.trains_predictor:
            return super().around(phase)
        if not self.exchanges:
            return dataclasses.replace(phase, does=Noisy(self, phase))
        return dataclasses.replace(
            phase,
            does=Observed(self, phase),
            uploads={**phase.uploads, UPLOAD: Upload(Combine.SUM, Role.STATISTICS)},
            keeps_state=phase.keeps_state or self.carry == "client",
        )

    def own_init(self, setup: Setup) -> Tree:
        if not self.exchanges:
            return {}
        channels = self._channels(setup.net, setup.shape)
        blank = {stage: torch.zeros(count, dtype=setup.dtype) for stage, count in channels.items()}
        own = {
            stage: {n: torch.full_like(zeros, first) for n, first in START.items()} for stage, zeros in blank.items()
        }
        return {"average": own, "gamma": {stage: tree.map(torch.ones_like, value) for stage, value in own.items()}}

    def own_draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return {
            stage: {"on": random.uniform(1)[0] < self.p, "noise": random.normal(2, size, count)}
            for stage, count in self._channels(ctx.net, ctx.shape).items()
        }

    def gammas(self, ctx: Context, stage: str, noise: Tensor) -> tuple[Tensor, Tensor]:
        """How much wider than the batch's spread the noise is: for means and for deviations."""
        if self.exchanges:
            shared: Mapping[str, Tensor] = ctx.shared[KEY]["gamma"][stage]
            return shared["mean"], shared["deviation"]
        constant = torch.full_like(noise[0, 0], float(self.gamma == "ones"))
        return constant, constant

    def _channels(self, net: Network, shape: tuple[int, ...]) -> dict[str, int]:
        """Channels at each chosen stage; without spatial features anywhere, those of every stage but the last."""
        outputs = stage_outputs(net, shape)
        named = tuple(net.stage_at(cut) for cut in self.stages)
        chosen = named or spatial_stages(net, shape) or net.stages[: net.penultimate]
        return {stage: outputs[stage].shape[0 if self.channel == 1 else -1] for stage in chosen}


class Noisy(Augmented[FedFA]):
    """Training with noisy channel statistics."""

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        fedfa, own = self.wrapper, batch.drawn["own"]
        first_seen: dict[str, dict[str, Tensor]] = {}

        def tap(stage: str, x: Tensor) -> Tensor:
            if stage not in own:
                return x
            noisy, mean, deviation = feature_augmentation(
                x,
                own[stage]["noise"],
                *fedfa.gammas(ctx, stage, own[stage]["noise"]),
                fixed=fedfa.fixed,
                unbiased=fedfa.unbiased,
                clamp=fedfa.clamp,
                detach=fedfa.detach,
                channel=fedfa.channel,
            )
            seen = {"mean": mean, "deviation": deviation} if has_positions(x, fedfa.channel) else {"mean": mean}
            first_seen.setdefault(stage, seen)
            return torch.where(own[stage]["on"], noisy, x)

        tapped = dataclasses.replace(ctx, net=ctx.net.tapped(tap))
        terms = self.phase.does.loss(_inner_work(work), self.inside(tapped), inner_batch(batch))
        self.observe(work, first_seen, own)
        return terms

    def observe(self, work: Tree, seen: Mapping[str, Mapping[str, Tensor]], own: Tree) -> None:
        """What a step saw at each stage; nobody asks."""


class Observed(Noisy):
    """The same where averages of the statistics go to the server, which compares them between clients."""

    def broadcast(self, server: Tree) -> Tree:
        return {**super().broadcast(server), KEY: server["own"]}

    def begin(self, ctx: Context) -> Tree:
        average: Tree = ctx.shared[KEY]["average"]
        if self.wrapper.carry == "client" and ctx.state["own"]:
            start: Tree = ctx.state["own"]
        elif self.wrapper.carry == "average":
            start = average
        else:
            start = {s: {n: torch.full_like(v[n], first) for n, first in START.items()} for s, v in average.items()}
        own = {s: {**tree.clone(value), "updates": value["mean"].new_zeros(())} for s, value in start.items()}
        return {**super().begin(ctx), KEY: own}

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        # A method that differentiates twice a step (sharpness) must not count the batch twice.
        once = iter([work[KEY]])

        def with_statistics(point: Tree) -> tuple[Tree, Tree]:
            return differentiate({**point, KEY: next(once, None) or tree.clone(work[KEY])})

        return super().gradient(with_statistics, _inner_work(work), ctx, batch)

    def observe(self, work: Tree, seen: Mapping[str, Mapping[str, Tensor]], own: Tree) -> None:
        with torch.no_grad():
            for stage, moments in seen.items():
                kept, on = work[KEY][stage], own[stage]["on"]
                for name, value in moments.items():
                    kept[name].copy_(moving_average(kept[name], value.detach().mean(0), self.wrapper.momentum, on))
                kept["updates"].add_(on.to(kept["updates"].dtype))

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(_inner_work(work), ctx)
        average = ctx.shared[KEY]["average"]
        sums = {stage: self._moments(own, average[stage]) for stage, own in work[KEY].items()}
        own = {s: {n: v[n] for n in START} for s, v in work[KEY].items()} if self.wrapper.carry == "client" else {}
        state = {**report.state, "own": own} if report.state else {}
        return report._replace(upload={**report.upload, UPLOAD: sums}, state=state)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        average, gamma = dict(server["own"]["average"]), dict(server["own"]["gamma"])
        for stage, sums in combined.values[UPLOAD].items():
            # A phase in which no batch passed the stage in train mode (of heads alone, say) says nothing about it.
            if float(sums["updates"]) > 0:
                average[stage], gamma[stage] = self._fused(average[stage], sums)
        return {**super().absorb(server, combined), "own": {"average": average, "gamma": gamma}}

    def _moments(self, own: Tree, reference: Tree) -> Tree:
        debiased, momentum = self.wrapper.carry == "debiased", self.wrapper.momentum
        known = own["updates"] > 0 if debiased else torch.ones_like(own["updates"]) > 0
        sums: Tree = {"count": known.double(), "updates": own["updates"].double()}
        for name, start in START.items():
            value = own[name].double()
            if debiased:
                left = torch.where(known, momentum ** own["updates"].double(), 0.0)
                value = (value - left * start) / (1 - left)
            change = torch.where(known, value - reference[name].double(), 0.0)
            sums |= {name: change, f"{name}_squared": change.square()}
        return sums

    def _fused(self, average: Tree, sums: Tree) -> tuple[Tree, Tree]:
        variances = {name: shared_variance(sums["count"], sums[name], sums[f"{name}_squared"]) for name in START}
        means = {name: (average[name].double() + sums[name] / sums["count"]).to(average[name]) for name in START}
        rule = normalised_gamma if self.wrapper.gamma == "shared" else torch.clone
        return means, {name: rule(variance).to(average[name]) for name, variance in variances.items()}


def _inner_work(work: Tree) -> Tree:
    """What the inner method carries along."""
    return {name: value for name, value in work.items() if name != KEY}
