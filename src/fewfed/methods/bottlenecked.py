"""Features with little room for anything but the class."""

import dataclasses
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.losses import one_hot
from fewfed.method import Batch, Context, Differentiate, Setup
from fewfed.methods.parts.augmentation import inner_batch
from fewfed.methods.parts.protection import CutProtection, Guarded, Protected
from fewfed.methods.parts.statistics import stage_outputs
from fewfed.phase import Phase
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class Bottlenecked(CutProtection):
    """Xia et al., CVPR 2025: noisy features whose classes are kept narrow, so that they say little beside the class.

    What is sent is z = f(x) + N(0, noise² I), and training sees the same noise at that stage. Then I(x; z) = h(z) −
    h(noise), and with one Gaussian a class h(z) is at most H(y) + sum_c p_c/2 · sum_j log(2·pi·e·(v_cj + noise²)), v
    the variance of feature j in class c. The penalty is weight · sum_c p_c/2 · mean_j log(1 + v_cj/noise²): what it
    lowers raises the bound on H(x | z), which bounds the error of every reconstruction. Deviations: the paper fits a
    Gaussian mixture, the released code several clusters a class, found in the epoch before, with a floor under the
    variances; here a class is one Gaussian with the variances of the batch, and a class with one row in a batch counts
    as narrow. An estimate, no guarantee. Running statistics of BatchNorm behind the cut see the noise, as in training.
    """

    name = "bottlenecked"
    paper = "Xia et al., Theoretical Insights in Model Inversion Robustness and Conditional Entropy Maximization for \
Collaborative Inference Systems, CVPR 2025"
    neutral = MappingProxyType({"weight": 0.0, "noise": 0.0})
    another_aim = "it also keeps the features of a class alike"

    weight: float = setting(0.1, "weight of the penalty", ge=0)
    noise: float = setting(0.1, "deviation of the noise on features at the cut, in training and when sent", ge=0)

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if not setup.task.classes:
            raise ConfigError(f"method '{self.name}' narrows classes: expected a classification task")
        if self.weight and not self.noise:
            raise ConfigError(
                f"weight = {self.weight} with noise = 0: features without noise have no entropy to compare with; "
                "expected a noise above 0, or weight = 0",
                key="noise",
            )

    @property
    def acts(self) -> bool:
        return self.noise > 0

    def guarded(self, phase: Phase) -> Phase:
        return dataclasses.replace(phase, does=Narrow(self, phase))

    def protected(self, phase: Phase) -> Phase:
        return dataclasses.replace(phase, does=Noisy(self, phase))


class Noisy(Protected[Bottlenecked]):
    """Features leave with the noise that training knows."""

    def shielded(self, rows: Tree, ctx: Context) -> Tree:
        noise = self.noise(rows, ctx, "noise of the bottleneck")
        return {name: value + self.wrapper.noise * noise[name] for name, value in rows.items()}


class Narrow(Guarded[Bottlenecked], Noisy):
    """Training with noise at the cut, and with the penalty as one term more."""

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        shape = stage_outputs(ctx.net, ctx.shape)[self._stage(ctx)].shape
        return {"inner": super().draw(random, ctx, size), "own": random.normal(size, *shape)}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        place, noise, size = self._stage(ctx), batch.drawn["own"], self.wrapper.noise

        def tap(stage: str, x: Tensor) -> Tensor:
            if stage != place:
                return x
            again: Tensor = noise[torch.arange(len(x), device=x.device) % len(noise)]
            return x + size * again

        tapped = dataclasses.replace(ctx, net=ctx.net.tapped(tap))
        terms = super().loss(work, tapped, inner_batch(batch))
        width = class_width(self.features(work, ctx, batch), batch.y, ctx.task.classes, size)
        return {**terms, self.wrapper.name: self.wrapper.weight * width}

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        return super().gradient(differentiate, work, ctx, inner_batch(batch))

    def _stage(self, ctx: Context) -> str:
        return ctx.net.stages[self.wrapper.position(ctx) - 1]


def class_width(features: Tensor, y: Tensor, classes: int, noise: float) -> Tensor:
    """Sum over classes of their share times the mean over features of log(1 + variance/noise²)/2."""
    member = one_hot(y, classes).to(features.dtype)
    count = member.sum(0)
    mean = (member.T @ features) / count.clamp(min=1).unsqueeze(1)
    variance = (member.T @ (features - member @ mean).square()) / count.clamp(min=1).unsqueeze(1)
    width = torch.log1p(variance / noise**2).mean(1) / 2
    return (count / len(y) * width).sum()
