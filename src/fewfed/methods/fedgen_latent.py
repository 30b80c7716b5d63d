"""FedGen (latent features)."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.errors import ConfigError
from fewfed.losses import kl_divergence
from fewfed.losses.features import sameness
from fewfed.method import Batch, Combined, Context, Differentiate, Part, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.kept_adam import PLAIN_STEPS, direction, fresh_moments
from fewfed.network import Network
from fewfed.networks.generator import LATENT_NOISE, conditioned, latent_generator
from fewfed.networks.projector import feature_shape
from fewfed.phase import EQUAL, MODEL, Clock, Cohort, Combine, Phase, Role, Upload
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedGenLatent(FedAvg):
    """Zhu et al., ICML 2021: a generator of penultimate features, taught by all local classifiers, guides clients.

    After each round the server trains G(noise, label) on Σ_k share_k(y)·CE(h_k(G(z, y)), y) + diversity term,
    h_k the last stage of client k's model and share_k(y) its part of the cohort's rows of class y; labels are uniform
    over classes the cohort has. Clients minimise CE + alpha_t·CE(h(G(z, y')), y') + beta_t·KL(h(G(z, y)) ‖ h(f(x))),
    y' drawn among classes seen so far, the KL's target detached; alpha_t = alpha·decay^t, beta_t alike. The generator's
    Adam goes on from round to round, moments and all, at a rate that falls by `lr_decay` a round. The server sees each
    client's last stage and class counts. Deviations: distances in the diversity term are root mean squares; the
    features have the width of the network's own instead of 32.
    """

    name = "fedgen-latent"
    family = "generator"
    paper = "Zhu et al., Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021"
    needs_classes = True
    needs_stages = True
    neutral = MappingProxyType({"alpha": 0.0, "beta": 0.0})

    alpha: float = setting(10.0, "weight of generated features in local training; authors 10", ge=0)
    beta: float = setting(10.0, "weight of the divergence from generated features; authors 10", ge=0)
    decay: float = setting(0.98, "factor on both weights each round; authors 0.98", gt=0, le=1)
    diversity: float = setting(1.0, "weight of the generator's diversity term; authors 1", ge=0)
    steps: int = setting(50, "generator steps a round; authors 50", ge=1)
    batch: int = setting(128, "rows of a generator batch; authors 128", ge=2)
    lr: float = setting(3e-4, "learning rate of the generator, Adam; authors 3e-4 or 1e-4", gt=0)
    lr_decay: float = setting(0.02, "part of that rate lost each round; authors 0.02", ge=0, lt=1)
    weight_decay: float = setting(1e-2, "L2 penalty of the generator; authors 1e-2", ge=0)

    def check(self, setup: Setup) -> None:
        if not setup.task.classes:
            raise ConfigError("method 'fedgen-latent' generates features of a class: expected a classification task")

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        training = {**PLAIN_STEPS, "lr": self.lr, "lr_rule": "geometric", "lr_decay": self.lr_decay, "lr_floor": 0.0}
        training |= {"batch": self.batch, "batch_rule": "fill"}
        uploads = {"head": Upload(Combine.KEEP, Role.MODEL), "counts": Upload(Combine.KEEP, Role.COUNTS)}
        made = {name: Upload(Combine.MEAN, Role.GENERATOR) for name in ("generator", "moments")}
        return (
            Phase("train", self, clock.epochs, {**MODEL, **uploads}),
            Phase("generate", Generate(self), 1, made, Cohort.SERVER, weight=EQUAL, training=training),
        )

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "generator", "seen") if name in server}

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        if "generator" not in ctx.shared:
            return {}
        seen = ctx.shared["seen"].nonzero().flatten()
        return {
            "noise": random.normal(size, LATENT_NOISE),
            "other_noise": random.normal(size, LATENT_NOISE),
            "other_y": seen[random.integers(len(seen), size).to(seen.device)],
        }

    def begin(self, ctx: Context) -> Tree:
        self.generator(ctx)  # Made before a step needs it: its first weights are random, which a stack refuses.
        return super().begin(ctx)

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        output = ctx.net.apply(work, batch.x)
        terms = {"task": ctx.task.loss(output, batch.y)}
        if not batch.drawn:
            return terms
        other_y, fading = batch.drawn["other_y"], self.decay**ctx.clock.round
        target = self._imagined(work, ctx, batch.drawn["noise"], batch.y).detach()
        others = self._imagined(work, ctx, batch.drawn["other_noise"], other_y)
        return {
            **terms,
            "generated": self.alpha * fading * ctx.task.loss(others, other_y),
            "divergence": self.beta * fading * kl_divergence(target, output),
        }

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        last = ctx.net.stages[-1] + "."
        head = {
            part: {name: value for name, value in leaves.items() if name.startswith(last)}
            for part, leaves in report.upload["model"].items()
        }
        return report._replace(upload={**report.upload, "head": head, "counts": ctx.counts})

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        heads, counts = (list(combined.values[name].values()) for name in ("head", "counts"))
        met = torch.stack(counts)
        seen = met.sum(0) + server.get("seen", torch.zeros_like(met[0]))
        return {**server, "model": combined.values["model"], "heads": tree.stack(heads), "counts": met, "seen": seen}

    def _imagined(self, work: Tree, ctx: Context, noise: Tensor, y: Tensor) -> Tensor:
        """The client's logits for generated features of the classes y."""
        code = conditioned(noise, y, ctx.task.classes)
        latent = self.generator(ctx).apply(ctx.shared["generator"], code, train=False)
        output: Tensor = ctx.net.apply(work, latent, start=ctx.net.penultimate)
        return output

    def generator(self, ctx: Context) -> Network:
        shape = feature_shape(ctx.net, ctx.shape)
        return latent_generator(shape, ctx.task.classes, ctx.plan.seed, ctx.dtype)


class Generate(Part[FedGenLatent]):
    """The server teaches the generator: every client's classifier is to recognise what it makes of known classes."""

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("generator", "moments", "heads", "counts") if name in server}

    def data(self, ctx: Context) -> Examples:
        present, rows = ctx.shared["counts"].sum(0).nonzero().flatten(), self.method.steps * self.method.batch
        labels = present[torch.arange(rows, device=present.device) % len(present)]
        return Examples(labels, labels)

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return {"noise": random.normal(size, LATENT_NOISE)}

    def begin(self, ctx: Context) -> Tree:
        fresh = self.method.generator(ctx).model()
        known = {**fresh, "moments": fresh_moments(fresh["params"])}
        if "generator" in ctx.shared:
            known = {**ctx.shared["generator"], "moments": ctx.shared["moments"]}
        return tree.clone(tree.to(known, ctx.data.x.device))

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        noise, counts = batch.drawn["noise"], ctx.shared["counts"]
        latent = self.method.generator(ctx).apply(work, conditioned(noise, batch.y, ctx.task.classes))
        shares = (counts / counts.sum(0).clamp(min=1))[:, batch.y]
        wrong = torch.zeros_like(shares[0])
        for client, share in enumerate(shares):
            head = tree.map(lambda leaf, client=client: leaf[client], ctx.shared["heads"])
            output = ctx.net.apply(head, latent, start=ctx.net.penultimate, train=False)
            wrong = wrong + share * cross_entropy(output, batch.y, reduction="none")
        return {"teach": wrong.mean(), "diversity": self.method.diversity * sameness(noise, latent)}

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        slope, terms = differentiate(work)
        return direction(work["moments"], work["params"], slope, self.method.weight_decay), terms

    def end(self, work: Tree, ctx: Context) -> Report:
        generator = {"params": work["params"], "buffers": work["buffers"]}
        return Report({"generator": generator, "moments": work["moments"]}, {}, 1.0)
