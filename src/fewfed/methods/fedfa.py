"""FedFA, federated feature augmentation."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from fewfed import tree
from fewfed.augmentation import Augmentation, inner_batch
from fewfed.method import Batch, Combined, Context, Differentiate, Preset, Report, Setup
from fewfed.network import Network
from fewfed.phase import Clock, Combine, Phase
from fewfed.plan import Draws
from fewfed.settings import setting
from fewfed.statistics import (
    feature_augmentation,
    has_positions,
    moving_average,
    normalised_gamma,
    shared_variance,
    spatial_stages,
    stage_outputs,
)
from fewfed.tree import Tree

KEY = "fedfa"
UPLOAD = "feature_moments"
START = MappingProxyType({"mean": 0.0, "deviation": 1.0})


@dataclass(frozen=True)
class FedFA(Augmentation):
    """Zhou & Konukoglu, ICLR 2023: channel statistics get noise as wide as clients and batches differ.

    After each chosen stage, with probability p a batch: mean and deviation of every row and channel (Eq. 2) are moved
    by Gaussian noise of variance (gamma + 1) · batch variance (Eq. 3, 7 to 9). Their momentum averages (Eq. 4) are
    uploaded; gamma is the normalised variance of these between clients, per channel (Eq. 5, 6). Clients are weighted
    equally (Eq. 1, `uniform`). Uploads are sums and sums of squares of deviations from the broadcast averages, in
    double precision, so the server needs no single client's statistics. Any method can be wrapped.

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
    neutral = MappingProxyType({"p": 0.0, "uniform": False})

    p: float = setting(0.5, "probability of noise, for each stage and batch; authors 0.5; 0 = none", ge=0, le=1)
    momentum: float = setting(0.99, "of the averaged statistics; authors 0.99; 0 = the last batch's", ge=0, lt=1)
    stages: tuple[str, ...] = setting((), "where; empty = every stage before the network pools, flattens or decodes")
    gamma: Literal["shared", "ones", "zeros", "raw"] = setting("shared", "Eq. 6, constants, or Eq. 5 unnormalised")
    fixed: float = setting(0.0, "noise of this standard deviation instead; authors' FedFA-R 0.5; 0 = off", ge=0)
    carry: Literal["average", "reset", "debiased", "client"] = setting(
        "average", "averaged statistics at a round's start: the clients' mean, 0 and 1 (debiased or not), or one's own"
    )
    uniform: bool = setting(True, "every client weighs the same in the model; false = as the inner method says")
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
        for stage in self.stages:
            setup.net.position(stage)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return tuple(self._extended(phase) for phase in self.inner.phases(clock))

    def server_init(self, setup: Setup) -> Tree:
        server = self.inner.server_init(setup)
        if not self.exchanges:
            return server
        channels = self._channels(setup.net, setup.shape)
        blank = {stage: torch.zeros(count, dtype=setup.dtype) for stage, count in channels.items()}
        own = {
            stage: {n: torch.full_like(zeros, first) for n, first in START.items()} for stage, zeros in blank.items()
        }
        ones = {stage: tree.map(torch.ones_like, value) for stage, value in own.items()}
        return {**server, KEY: {"average": own, "gamma": ones}}

    def broadcast(self, server: Tree, phase: Phase) -> Tree:
        shared = self.inner.broadcast(_without(server), phase)
        return {**shared, KEY: server[KEY]} if self._observes(phase) else shared

    def personal(self, server: Tree, phase: Phase, client: int) -> Tree:
        return self.inner.personal(_without(server), phase, client)

    def begin(self, ctx: Context) -> Tree:
        work = self.inner.begin(_inner_context(ctx))
        return {**work, KEY: self._at_start(ctx)} if self._observes(ctx.phase) else work

    def own_draw(self, draws: Draws, ctx: Context, size: int) -> Tree:
        return {
            stage: {"on": draws.uniform(1)[0] < self.p, "noise": draws.normal(2, size, count)}
            for stage, count in self._channels(ctx.net, ctx.shape).items()
        }

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        own = batch.draw["own"]
        first_seen: dict[str, dict[str, Tensor]] = {}

        def tap(stage: str, x: Tensor) -> Tensor:
            if stage not in own:
                return x
            noisy, mean, deviation = feature_augmentation(
                x,
                own[stage]["noise"],
                *self._gammas(ctx, stage, own[stage]["noise"]),
                fixed=self.fixed,
                unbiased=self.unbiased,
                clamp=self.clamp,
                detach=self.detach,
                channel=self.channel,
            )
            seen = {"mean": mean, "deviation": deviation} if has_positions(x, self.channel) else {"mean": mean}
            first_seen.setdefault(stage, seen)
            return torch.where(own[stage]["on"], noisy, x)

        inside = dataclasses.replace(_inner_context(ctx), net=ctx.net.tapped(tap))
        terms = self.inner.loss(_without(work), inside, inner_batch(batch))
        if KEY in work:
            for stage, moments in first_seen.items():
                self._remember(work[KEY][stage], moments, own[stage]["on"])
        return terms

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        if KEY not in work:
            return super().gradient(differentiate, work, ctx, batch)
        # A method that differentiates twice a step (sharpness) must not count the batch twice.
        once = iter([work[KEY]])

        def with_statistics(point: Tree) -> tuple[Tree, Tree]:
            return differentiate({**point, KEY: next(once, None) or tree.clone(work[KEY])})

        return super().gradient(with_statistics, _without(work), _inner_context(ctx), batch)

    def end(self, work: Tree, ctx: Context) -> Report:
        report = self.inner.end(_without(work), _inner_context(ctx))
        weight = 1.0 if self.uniform and ctx.phase.epochs else report.weight
        if not self._observes(ctx.phase):
            return Report(report.upload, self._state(report.state, ctx, ctx.state.get(KEY)), weight)
        upload = {stage: self._moments(own, ctx.shared[KEY]["average"][stage]) for stage, own in work[KEY].items()}
        return Report({**report.upload, UPLOAD: upload}, self._state(report.state, ctx, work[KEY]), weight)

    def absorb(self, server: Tree, phase: Phase, combined: Combined) -> Tree:
        values = {name: value for name, value in combined.values.items() if name != UPLOAD}
        after = self.inner.absorb(_without(server), phase, combined._replace(values=values))
        if not self.exchanges:
            return after
        average, gamma = dict(server[KEY]["average"]), dict(server[KEY]["gamma"])
        for stage, sums in combined.values.get(UPLOAD, {}).items():
            # A phase in which no batch passed the stage in train mode (a generator's, say) says nothing about it.
            if float(sums["updates"]) > 0:
                average[stage], gamma[stage] = self._fused(average[stage], sums)
        return {**after, KEY: {"average": average, "gamma": gamma}}

    def predictor(self, server: Tree, state: Tree) -> Tree:
        return self.inner.predictor(_without(server), _without(state))

    def _observes(self, phase: Phase) -> bool:
        return self.exchanges and phase.epochs > 0

    def _extended(self, phase: Phase) -> Phase:
        if not self._observes(phase):
            return phase
        uploads = {**phase.uploads, UPLOAD: Combine.SUM}
        return dataclasses.replace(phase, uploads=uploads, keeps_state=phase.keeps_state or self.carry == "client")

    def _channels(self, net: Network, shape: tuple[int, ...]) -> dict[str, int]:
        """Channels at each chosen stage; without spatial features anywhere, those of every stage but the last."""
        outputs = stage_outputs(net, shape)
        chosen = self.stages or spatial_stages(net, shape) or net.stages[: net.penultimate]
        return {stage: outputs[stage].shape[0 if self.channel == 1 else -1] for stage in chosen}

    def _at_start(self, ctx: Context) -> Tree:
        average: Tree = ctx.shared[KEY]["average"]
        if self.carry == "client" and KEY in ctx.state:
            start: Tree = ctx.state[KEY]
        elif self.carry == "average":
            start = average
        else:
            start = {s: {n: torch.full_like(v[n], first) for n, first in START.items()} for s, v in average.items()}
        return {s: {**tree.clone(value), "updates": value["mean"].new_zeros(())} for s, value in start.items()}

    def _gammas(self, ctx: Context, stage: str, noise: Tensor) -> tuple[Tensor, Tensor]:
        if self.exchanges:
            shared: Mapping[str, Tensor] = ctx.shared[KEY]["gamma"][stage]
            return shared["mean"], shared["deviation"]
        constant = torch.full_like(noise[0, 0], float(self.gamma == "ones"))
        return constant, constant

    def _remember(self, own: Tree, moments: Mapping[str, Tensor], on: Tensor) -> None:
        with torch.no_grad():
            for name, value in moments.items():
                own[name].copy_(moving_average(own[name], value.detach().mean(0), self.momentum, on))
            own["updates"].add_(on.to(own["updates"].dtype))

    def _moments(self, own: Tree, reference: Tree) -> Tree:
        known = own["updates"] > 0 if self.carry == "debiased" else torch.ones_like(own["updates"]) > 0
        sums: Tree = {"count": known.double(), "updates": own["updates"].double()}
        for name, start in START.items():
            value = own[name].double()
            if self.carry == "debiased":
                left = torch.where(known, self.momentum ** own["updates"].double(), 0.0)
                value = (value - left * start) / (1 - left)
            change = torch.where(known, value - reference[name].double(), 0.0)
            sums |= {name: change, f"{name}_squared": change.square()}
        return sums

    def _fused(self, average: Tree, sums: Tree) -> tuple[Tree, Tree]:
        variances = {name: shared_variance(sums["count"], sums[name], sums[f"{name}_squared"]) for name in START}
        means = {name: (average[name].double() + sums[name] / sums["count"]).to(average[name]) for name in START}
        rule = normalised_gamma if self.gamma == "shared" else torch.clone
        return means, {name: rule(variance).to(average[name]) for name, variance in variances.items()}

    def _state(self, inner: Tree, ctx: Context, own: Tree | None) -> Tree:
        if self.carry != "client" or not ctx.phase.keeps_state or own is None:
            return inner
        kept = next(p.keeps_state for p in self.inner.phases(ctx.clock) if p.name == ctx.phase.name)
        return {**(inner if kept else ctx.state), KEY: {s: {n: v[n] for n in START} for s, v in own.items()}}


def _inner_context(ctx: Context) -> Context:
    return dataclasses.replace(ctx, state=_without(ctx.state)) if KEY in ctx.state else ctx


def _without(values: Tree) -> Tree:
    """What belongs to the inner method."""
    return {name: value for name, value in values.items() if name != KEY}
