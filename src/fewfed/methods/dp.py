"""Local training with clipped gradients and noise."""

import dataclasses
import math
from dataclasses import dataclass, field
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.errors import ConfigError
from fewfed.mechanism import Mechanism, refuse_few_bits
from fewfed.method import Batch, Context, Differentiate, Method, Report, RowByRow, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.augmentation import inner_batch
from fewfed.methods.parts.blind import blind, refuse_hidden, without_rows
from fewfed.phase import Clock, Phase
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree
from fewfed.wrapper import Around, Wrapper

_WHY = "dp bounds what single rows do to a step"


@dataclass(frozen=True)
class DP(Wrapper):
    """Abadi et al., CCS 2016, at every client: the gradient of each row is clipped to `clip`, their sum gets Gaussian
    noise of deviation sigma · clip, and is divided by the rows of the batch. Wherever clients train on their rows.

    Gradients of rows are those of the method's own loss on that row alone, so that a loss must be a mean over rows:
    one that compares the rows of a batch, and BatchNorm, are refused. Around training, rows and class counts are hidden
    from the method, so that what it uploads there is made from the noisy steps alone; loss terms are not reported: they
    are computed without noise. What other phases send is not protected by it: the privacy ledger says what is.

    Deviations: batches are the plan's, reshuffled and of fixed size, not Poisson samples; the ledger claims no
    amplification for them.
    """

    name = "dp"
    family = "privacy"
    paper = "Abadi et al., Deep Learning with Differential Privacy, CCS 2016"
    neutral = MappingProxyType({"clip": math.inf, "sigma": 0.0})

    another_aim = "gradients of rows are clipped, so that rows far off count less, and noisy"

    inner: Method = field(default_factory=FedAvg)
    clip: float = setting(1.0, "largest norm of a row's gradient; inf = not clipped, and no noise", gt=0)
    sigma: float = setting(1.0, "deviation of the noise, in clips; 0 = none, and no bound", ge=0)

    @property
    def is_neutral(self) -> bool:
        """Whether nothing is clipped and no noise is added."""
        return math.isinf(self.clip) and not self.sigma

    @property
    def no_batchnorm(self) -> str:  # type: ignore[override]
        if self.is_neutral:
            return self.inner.no_batchnorm
        return "it mixes the rows of a batch, and gradients of rows are clipped one by one"

    @property
    def needs_rows_apart(self) -> bool:  # type: ignore[override]
        return not self.is_neutral

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if math.isinf(self.clip) and self.sigma:
            raise ConfigError("dp: noise is as wide as gradients are clipped, but clip = inf: expected a finite clip")
        if self.is_neutral:
            return
        refuse_few_bits(setup.net.model()["params"], self.name)
        if any(isinstance(method, DP) for method in self.inner.layers):
            raise ConfigError(f"'{self.inner.label}' clips gradients of rows already: wrap it in 'dp' once")
        for phase in self.inner.phases(Clock(0, 1, setup.training.epochs)):
            if phase.keeps_state and not phase.trains_on_clients_rows:
                raise ConfigError(
                    f"dp: phase '{phase.name}' of '{self.inner.label}' lets clients remember what they compute without "
                    "noise, and training may use it: expected a method whose clients remember nothing of such phases"
                )

    def around(self, phase: Phase) -> Phase:
        if not phase.trains_on_clients_rows:
            return super().around(phase)
        return dataclasses.replace(phase, does=Private(self, phase))

    def mechanisms(self, clock: Clock) -> tuple[Mechanism, ...]:
        trained = [phase for phase in self.inner.phases(clock) if phase.trains_on_clients_rows]
        noise = 0.0 if self.is_neutral else self.sigma
        own = (Mechanism(phase.name, frozenset(phase.uploads), noise, "step") for phase in trained if noise)
        return (*self.inner.mechanisms(clock), *own)


class Private(Around[DP]):
    """A training phase whose steps see noisy sums of clipped gradients."""

    def inside(self, ctx: Context) -> Context:
        inside = super().inside(ctx)
        return inside if self.wrapper.is_neutral else blind(inside, _WHY)

    def data(self, ctx: Context) -> Examples:
        found = self.phase.does.data(super().inside(ctx))
        if found is not ctx.data and not self.wrapper.is_neutral:
            raise ConfigError(
                f"dp: phase '{self.phase.name}' of '{self.wrapper.inner.label}' trains on other rows than the client's "
                "own: expected a method that trains on these, each of which is counted"
            )
        return found

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        drawn: Tree = {"inner": super().draw(random, ctx, size)}
        if self.wrapper.sigma:
            source = ctx.plan.step_noise(random)
            drawn["noise"] = {name: source.normal(*leaf.shape) for name, leaf in self.begin(ctx)["params"].items()}
        return drawn

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        return super().loss(work, ctx, inner_batch(batch))

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        refuse_hidden({**report.upload, **report.state})
        return report

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        dp = self.wrapper
        if dp.is_neutral:
            return super().gradient(differentiate, work, ctx, inner_batch(batch))
        if not isinstance(differentiate, RowByRow):
            raise ConfigError("dp: a wrapper around it changes how gradients are taken: expected dp outside of it")
        by_row, rows, times = differentiate.by_row, len(batch.x), iter([None])

        def private(point: Tree) -> tuple[Tree, Tree]:
            if next(times, self) is self:
                raise ConfigError(
                    f"dp: '{dp.inner.label}' takes several gradients a step, which one noise does not protect: "
                    "expected a method that takes one"
                )
            summed = clipped_sum(by_row(point), dp.clip)
            if dp.sigma:
                noise = batch.drawn["noise"]
                if extra := summed.keys() - noise.keys():
                    raise ConfigError(
                        f"dp: '{dp.inner.label}' asks for gradients of '{min(extra)}' too, which it does not hand over "
                        "to be trained, and for which there is no noise: expected a method that trains what it "
                        "differentiates"
                    )
                summed = {name: leaf + dp.sigma * dp.clip * noise[name] for name, leaf in summed.items()}
            return {name: leaf / rows for name, leaf in summed.items()}, {}

        return super().gradient(private, work, ctx, without_rows(inner_batch(batch), _WHY))


def clipped_sum(gradients: Tree, clip: float) -> Tree:
    """The sum over rows of gradients that are each, over all parameters together, at most so long. A row whose gradient
    is not finite counts as none: its length would otherwise be told by the failure."""
    squares = [leaf.flatten(1).square().sum(1) for leaf in gradients.values()]
    length = torch.stack(squares).sum(0).sqrt()
    sound = torch.isfinite(length)
    factor = torch.where(sound, (clip / length.clamp(min=1e-30)).clamp(max=1.0), 0.0)

    def summed(leaf: Tensor) -> Tensor:
        shape = (-1, *[1] * (leaf.dim() - 1))
        return torch.where(sound.reshape(shape), leaf * factor.reshape(shape), 0.0).sum(0)

    return {name: summed(leaf) for name, leaf in gradients.items()}
