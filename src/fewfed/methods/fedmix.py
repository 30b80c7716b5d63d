"""FedMix."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from fewfed.errors import ConfigError
from fewfed.losses import mix
from fewfed.method import Batch, Context, Preset, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.asked import Asked
from fewfed.phase import Clock, Cohort, Phase, Role, shared_rows
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedMix(FedAvg):
    """Yoon et al., ICLR 2021: local inputs are mixed with averages of other clients' inputs and labels.

    Before round 1 every client uploads means of `group` rows and of their one-hot labels (the remainder is dropped;
    a client with fewer rows sends none). Preset `flea`, the default and what FLea's tables show: x~ = lam·x +
    (1−lam)·x_bar with one lam ~ Beta(a, a) a batch, soft cross-entropy on the mixture alone (FLea spec C17). Each of
    its steps first passes the batch unmixed in train mode and drops that loss: all that stays is that BatchNorm's
    running statistics follow unmixed inputs, which a test has, as well as mixed ones. Preset `taylor`, Eq. 4 of the
    paper: (1−l)·CE(h(x'), y) + l·CE(h(x'), y_bar) + l·<d[(1−l)·CE]/dx', x_bar>, x' = (1−l)·x, with one (x_bar, y_bar)
    a batch; the derivative is of the mean loss, so nothing divides it by the batch again.
    """

    name = "fedmix"
    family = "data sharing"
    paper = "Yoon et al., FedMix: Approximation of Mixup under Mean Augmented Federated Learning, ICLR 2021"
    presets = MappingProxyType(
        {"flea": Preset({"form": "mixup", "unmixed_pass": True}), "taylor": Preset({"form": "taylor"})}
    )
    neutral = MappingProxyType({"group": 10**9})
    mixes = ("row", "lam")

    form: Literal["mixup", "taylor"] = setting("mixup", "mix-up with averages, or the paper's Taylor expansion")
    group: int = setting(10, "rows in one uploaded average", ge=1)
    beta: float = setting(2.0, "mix-up form: lam ~ Beta(beta, beta)", gt=0)
    unmixed_pass: bool = setting(True, "mix-up form: pass each batch unmixed first, for BatchNorm alone; FLea's code")
    weight: float = setting(0.1, "Taylor form: l; authors 0.05 (CIFAR-10), 0.1 (CIFAR-100), 0.2 (FEMNIST)", ge=0, lt=1)

    def check(self, setup: Setup) -> None:
        if not setup.task.outputs:
            raise ConfigError(
                "method 'fedmix' averages labels that name a class: expected a classification task, or segmentation"
            )

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        means = shared_rows(1 / self.group, mean_x=Role.INPUTS, mean_y=Role.LABELS)
        setup = (Phase("setup", Averages(self), uploads=means, cohort=Cohort.ALL),) if clock.first else ()
        return (*setup, Phase("train", self, clock.epochs))

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "mean_x", "mean_y")}

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        pool = len(ctx.shared["mean_x"])
        count = size if self.form == "mixup" else 1
        return {"row": random.cycle(pool, count), "lam": random.beta(self.beta, 1)} if pool else {}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        if not batch.drawn:
            return super().loss(work, ctx, batch)
        mean_x, mean_y = ctx.shared["mean_x"][batch.drawn["row"]], ctx.shared["mean_y"][batch.drawn["row"]]
        own_y = ctx.task.soft_labels(batch.y)
        if self.form == "mixup":
            if self.unmixed_pass and work["buffers"]:
                with torch.no_grad():
                    ctx.net.apply(work, batch.x)
            mixed, target = mix(batch.drawn["lam"], batch.x, mean_x), mix(batch.drawn["lam"], own_y, mean_y)
            return {"task": ctx.task.soft_loss(ctx.net.apply(work, mixed), target)}
        scaled, rest = (1 - self.weight) * batch.x, 1 - self.weight

        def own_loss(x: Tensor) -> tuple[Tensor, Tensor]:
            output = ctx.net.apply(work, x)
            return rest * ctx.task.soft_loss(output, own_y), output

        slope, output = torch.func.grad(own_loss, has_aux=True)(scaled)
        return {
            "task": rest * ctx.task.soft_loss(output, own_y),
            "their_label": self.weight * ctx.task.soft_loss(output, mean_y.expand_as(own_y)),
            "their_input": self.weight * (slope * mean_x).sum(),
        }


class Averages(Asked[FedMix]):
    """Before round 1 every client uploads means of its rows."""

    def end(self, work: Tree, ctx: Context) -> Report:
        rows = self.origins(ctx)
        y = ctx.task.soft_labels(ctx.data.y[rows.flatten()]).to(ctx.dtype)
        means = {"mean_x": ctx.data.x[rows].mean(1), "mean_y": y.reshape(*rows.shape, *y.shape[1:]).mean(1)}
        return Report(means, {}, ctx.weight)

    def origins(self, ctx: Context) -> Tensor:
        group = min(self.method.group, ctx.size + 1)  # One that is too large leaves no groups, and no memory for one.
        rows = ctx.plan.fixed(ctx.client, "averaged rows").permutation(ctx.size)
        return rows[: ctx.size // group * group].reshape(-1, group)
