"""FedGen (inputs)."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.errors import ConfigError
from fewfed.losses.features import sameness
from fewfed.method import Batch, Context, Part, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.network import Network
from fewfed.networks.generator import INPUT_NOISE, conditioned, input_generator
from fewfed.phase import EQUAL, Clock, Cohort, Combine, Phase, Role, Upload
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedGen(FedAvg):
    """Liu, Feng and Zheng, PAKDD 2022, **re-created** from its abstract and FLea's description: no code was released.

    The first `start` rounds are FedAvg. From then on, each round the server trains a generator G(noise, label) of
    inputs against the global model in eval mode, CE(model(G(z, y)), y) + diversity·exp(−mean |z_i − z_j|·|G_i − G_j|),
    labels uniform; clients receive it and add one synthetic batch a step: CE(real) + weight·CE(synthetic). BatchNorm
    normalises that batch by itself, and its running statistics follow real rows alone: synthetic ones are many times as
    large before long, and with their statistics no real row is told from another. Neither this nor its numbers are the
    authors'. Not Zhu et al.'s FedGen, which generates features: see `fedgen-latent`.
    """

    name = "fedgen"
    family = "generator"
    paper = (
        "Liu et al., Overcoming Forgetting in Local Adaptation of Federated Learning Model, PAKDD 2022 (re-creation)"
    )
    needs_classes = True
    neutral = MappingProxyType({"start": 10**9})

    start: int = setting(30, "rounds of plain FedAvg before the generator; FLea's authors 30", ge=0)
    weight: float = setting(1.0, "weight of the synthetic batch", ge=0)
    diversity: float = setting(1.0, "weight of the generator's diversity term", ge=0)
    steps: int = setting(50, "generator steps a round", ge=1)
    batch: int = setting(128, "rows of a generator batch", ge=2)
    lr: float = setting(1e-3, "learning rate of the generator, Adam", gt=0)

    def check(self, setup: Setup) -> None:
        if not setup.task.classes:
            raise ConfigError("method 'fedgen' generates inputs of a class: expected a classification task")

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        train = Phase("train", self, clock.epochs)
        if clock.round < self.start:
            return (train,)
        training = {"optimizer": "adam", "lr": self.lr, "lr_decay": 0.0, "batch": self.batch, "batch_rule": "fill"}
        training |= {"reset": "round", "weight_decay": 0.0, "clip": 0.0}
        made = {"generator": Upload(Combine.MEAN, Role.GENERATOR)}
        return (Phase("generate", Generate(self), 1, made, Cohort.SERVER, weight=EQUAL, training=training), train)

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "generator") if name in server}

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        if "generator" not in ctx.shared:
            return {}
        return {"noise": random.normal(size, INPUT_NOISE), "label": random.integers(ctx.task.classes, size)}

    def begin(self, ctx: Context) -> Tree:
        if "generator" in ctx.shared:
            self.generator(ctx)  # Made before a step needs it: its first weights are random, which a stack refuses.
        return super().begin(ctx)

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        terms = super().loss(work, ctx, batch)
        if not batch.drawn:
            return terms
        label = batch.drawn["label"]
        code = conditioned(batch.drawn["noise"], label, ctx.task.classes)
        made = self.generator(ctx).apply(ctx.shared["generator"], code, train=False)
        apart = {"params": work["params"], "buffers": tree.clone(work["buffers"])}  # For the running statistics.
        return {**terms, "synthetic": self.weight * ctx.task.loss(ctx.net.apply(apart, made), label)}

    def generator(self, ctx: Context) -> Network:
        return input_generator(ctx.shape, ctx.task.classes, ctx.plan.seed, ctx.dtype)


class Generate(Part[FedGen]):
    """The server trains the generator against the global model, which stays as it is."""

    def broadcast(self, server: Tree) -> Tree:
        return self.method.broadcast(server)

    def data(self, ctx: Context) -> Examples:
        rows = self.method.steps * self.method.batch
        labels = torch.arange(rows, device=ctx.data.x.device) % ctx.task.classes
        return Examples(labels, labels)

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return {"noise": random.normal(size, INPUT_NOISE)}

    def begin(self, ctx: Context) -> Tree:
        fresh = self.method.generator(ctx).model()
        return tree.clone(tree.to(ctx.shared.get("generator", fresh), ctx.data.x.device))

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        noise = batch.drawn["noise"]
        made = self.method.generator(ctx).apply(work, conditioned(noise, batch.y, ctx.task.classes))
        judged = ctx.net.apply(ctx.shared["model"], made, train=False)
        return {"fool": ctx.task.loss(judged, batch.y), "diversity": self.method.diversity * sameness(noise, made)}

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({"generator": work}, {}, 1.0)
