"""Clipped uploads, and noise that the server adds to what it combines."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.mechanism import Mechanism, refuse_few_bits
from fewfed.method import Combined, Context, Method, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import EQUAL, Clock, Cohort, Combine, Phase, Role
from fewfed.plan import Plan
from fewfed.settings import setting
from fewfed.tree import Tree
from fewfed.wrapper import Around, Wrapper

_SERVER = -1
_OPEN = (Role.COUNTS, Role.LABELS)


@dataclass(frozen=True)
class CentralDP(Wrapper):
    """McMahan et al., ICLR 2018: each client's upload is clipped to `clip`, and the server adds Gaussian noise of
    deviation sigma · clip, once, to the sum over clients. For all that is averaged or summed, but counts.

    All such uploads of a phase are clipped together, a model or generator as its change from the one that was
    broadcast. Clients weigh the same whatever the training says: by samples, one client could weigh as much as all
    others. It protects from other sites, not from the server, which sees clipped uploads without noise. One row can
    turn its client's upload around, so that the noise of a row is sigma / 2 in the privacy ledger.
    """

    name = "central-dp"
    family = "privacy"
    paper = "McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018"
    neutral = MappingProxyType({"clip": math.inf, "sigma": 0.0})
    another_aim = "changes of clients are clipped, so that clients far off count less, and noisy"

    inner: Method = field(default_factory=FedAvg)
    clip: float = setting(1.0, "largest norm of what a client changes; inf = not clipped, and no noise", gt=0)
    sigma: float = setting(1.0, "deviation of the noise on the sum over clients, in clips; 0 = none", ge=0)

    @property
    def is_neutral(self) -> bool:
        """Whether nothing is clipped and no noise is added."""
        return math.isinf(self.clip) and not self.sigma

    @property
    def no_batchnorm(self) -> str:  # type: ignore[override]
        return self.inner.no_batchnorm if self.is_neutral else "noise would make its running variances negative"

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if math.isinf(self.clip) and self.sigma:
            raise ConfigError("central-dp: noise is as wide as uploads are clipped, but clip = inf: expected a number")
        if not self.is_neutral:
            refuse_few_bits(setup.net.model()["params"], self.name)

    def around(self, phase: Phase) -> Phase:
        if self.is_neutral or not protected(phase):
            return super().around(phase)
        return dataclasses.replace(phase, does=Clipped(self, phase), weight=EQUAL)

    def mechanisms(self, clock: Clock) -> tuple[Mechanism, ...]:
        phases = [] if self.is_neutral else [phase for phase in self.inner.phases(clock) if protected(phase)]
        own = (Mechanism(phase.name, protected(phase), self.sigma / 2, "round") for phase in phases if self.sigma)
        return (*self.inner.mechanisms(clock), *own)

    def own_init(self, setup: Setup) -> Tree:
        """What the server draws noise with: a function of its tree has no other place for it."""
        system = setup.plan.protection == "system"
        return {"seed": torch.tensor(setup.plan.seed), "system": torch.tensor(system), "drawn": torch.tensor(0)}


class Clipped(Around[CentralDP]):
    """A phase whose uploads are clipped, and whose combination is noisy."""

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        names = sorted(protected(self.phase))
        base = {name: _reference(self.phase, name, report.upload[name], ctx.shared) for name in names}
        change = {name: _apart(report.upload[name], base[name]) for name in names}
        squares = [leaf.square().sum() for _, leaf in tree.leaves(change)]
        length = torch.stack(squares).sum().sqrt()
        factor = (self.wrapper.clip / length.clamp(min=1e-30)).clamp(max=1.0)
        clipped = tree.scale(change, factor)
        sent = {name: _together(clipped[name], base[name]) for name in names}
        return report._replace(upload={**report.upload, **sent}, weight=1.0)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        own = server["own"]
        plan = Plan(int(own["seed"]), 1, protection="system" if bool(own["system"]) else "seed")
        random = plan.protecting(int(own["drawn"]), self.phase.name, _SERVER, "combination")
        deviation = self.wrapper.sigma * self.wrapper.clip

        def noisy(leaf: Tensor, share: float) -> Tensor:
            return leaf + (deviation * share * random.normal(*leaf.shape).double()).to(leaf)

        values = dict(combined.values)
        for name in sorted(protected(self.phase)) if self.wrapper.sigma else ():
            share = 1 / len(combined.clients) if self.phase.uploads[name].combine is Combine.MEAN else 1.0
            values[name] = tree.map(partial(noisy, share=share), {"": values[name]})[""]
        after = super().absorb(server, combined._replace(values=values))
        return {**after, "own": {**own, "drawn": own["drawn"] + 1}}


def protected(phase: Phase) -> frozenset[str]:
    """The uploads of a phase that are summed or averaged over clients, and are no counts."""
    if phase.cohort not in (Cohort.ROUND, Cohort.ALL):
        return frozenset()
    return frozenset(
        name for name, upload in phase.uploads.items() if not upload.combine.seen_raw and upload.role not in _OPEN
    )


def _reference(phase: Phase, name: str, value: Tree | Tensor, shared: Tree) -> Tree | Tensor | None:
    """What a model was before the client changed it; None where it is not among what was broadcast."""
    if phase.uploads[name].role not in (Role.MODEL, Role.GENERATOR) or name not in shared:
        return None
    return shared[name] if _forms(shared[name]) == _forms(value) else None


def _forms(value: Tree | Tensor) -> Mapping[str, torch.Size]:
    return {path: leaf.shape for path, leaf in tree.leaves({"": value})}


def _apart(value: Tree | Tensor, base: Tree | Tensor | None) -> Tree | Tensor:
    return value if base is None else tree.sub({"": value}, {"": base})[""]


def _together(change: Tree | Tensor, base: Tree | Tensor | None) -> Tree | Tensor:
    return change if base is None else tree.add({"": change}, {"": base})[""]
