"""FedFed."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.method import Batch, Context, Preset, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.network import Network
from fewfed.networks.cvae import decode, encode, gaussian_kl, sample, vae
from fewfed.phase import Clock, Cohort, Combine, Phase
from fewfed.plan import Draws
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedFed(FedAvg):
    """Yang et al., NeurIPS 2023: an autoencoder takes from inputs what classifies nothing; the noisy rest is shared.

    In the first `distil_rounds` rounds (at most half of a run) clients also train, in phase `distil`, an autoencoder
    and a classifier for it: 5·MSE(x, x_r) + 0.005·KL + 2·CE(x − x_r + noise) + 0.4·CE(x). Then every client uploads
    once, with the labels, x − x_r of all its rows, one copy for each noise; from there on a step takes as many drawn
    shared rows as local ones. KL is a mean over rows and code. Deviations: the global model trains by FedAvg during
    distillation, so that rounds compare; the autoencoder is dense, the release's is convolutional.
    """

    name = "fedfed"
    family = "data sharing"
    paper = "Yang et al., FedFed: Feature Distillation against Data Heterogeneity in Federated Learning, NeurIPS 2023"
    needs_classes = True
    steps_differ = "the first rounds also train the autoencoder, and later steps take twice the rows"
    presets = MappingProxyType({"config": Preset({"noises": (0.2, 0.25)}, note="configuration file of the release")})
    neutral = MappingProxyType({"distil_rounds": 0})

    distil_rounds: int = setting(15, "rounds of distillation; authors 15; 0 = FedAvg", ge=0)
    noises: tuple[float, ...] = setting((0.15, 0.25), "standard deviations of the noise on shared parts")
    reconstruct: float = setting(5.0, "weight of the reconstruction; authors 5", ge=0)
    kl: float = setting(0.005, "weight of the KL; authors 0.005", ge=0)
    sensitive: float = setting(2.0, "weight of classifying the noisy sensitive part; authors 2", ge=0)
    plain: float = setting(0.4, "weight of classifying the input; authors 0.4", ge=0)
    hidden: int = setting(256, "hidden width of the autoencoder", ge=1)
    latent: int = setting(64, "code length of the autoencoder", ge=1)

    def check(self, setup: Setup) -> None:
        if not setup.task.classes:
            raise ConfigError("method 'fedfed' shares class labels: expected a classification task")
        if not self.noises or min(self.noises) < 0:
            raise ConfigError(f"noises = {self.noises}: expected at least one standard deviation, none below 0")

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        distilling = min(self.distil_rounds, clock.rounds // 2)
        distil = Phase("distil", clock.epochs, {"distiller": Combine.MEAN})
        share = Phase("share", 0, {"parts": Combine.CONCAT, "labels": Combine.CONCAT}, Cohort.ALL)
        first = ((distil,) if clock.round < distilling else ()) + ((share,) if clock.round == distilling - 1 else ())
        return (*first, Phase("train", clock.epochs))

    def server_init(self, setup: Setup) -> Tree:
        models = {"vae": self._vae(setup.shape, setup).model(), "classifier": setup.net.model()}
        joined = {
            kind: {f"{owner}.{name}": leaf for owner, model in models.items() for name, leaf in model[kind].items()}
            for kind in ("params", "buffers")
        }
        return {**super().server_init(setup), "distiller": joined}

    def broadcast(self, server: Tree, phase: Phase) -> Tree:
        if phase.name == "distil":
            return {"distiller": server["distiller"]}
        if phase.name == "share":
            return {"vae": _part(server["distiller"], "vae")}
        return {name: server[name] for name in ("model", "parts", "labels") if name in server}

    def begin(self, ctx: Context) -> Tree:
        if ctx.phase.name == "train":
            return super().begin(ctx)
        return tree.clone(ctx.shared["distiller"]) if ctx.phase.name == "distil" else {}

    def draw(self, draws: Draws, ctx: Context, size: int) -> Tree:
        if ctx.phase.name == "distil":
            shape = ctx.shape
            return {"code": draws.normal(size, self.latent), "noise": draws.normal(len(self.noises), size, *shape)}
        pool = len(ctx.shared.get("labels", ()))
        return {"row": draws.cycle(pool, size)} if pool else {}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        if ctx.phase.name == "distil":
            return self._distil_loss(work, ctx, batch)
        if batch.draw:
            row = batch.draw["row"]
            x, y = torch.cat([batch.x, ctx.shared["parts"][row]]), torch.cat([batch.y, ctx.shared["labels"][row]])
            batch = batch._replace(x=x, y=y)
        return super().loss(work, ctx, batch)

    def end(self, work: Tree, ctx: Context) -> Report:
        if ctx.phase.name == "train":
            return super().end(work, ctx)
        if ctx.phase.name == "distil":
            return Report({"distiller": work}, {}, float(ctx.size))
        x, net = ctx.data.x, self._vae(ctx.shape, ctx)
        mean, _ = encode(net, ctx.shared["vae"], x, train=False)
        rest = x - decode(net, ctx.shared["vae"], mean, train=False)
        noise = ctx.plan.fixed(ctx.client, "noise on shared parts").normal(len(self.noises), *x.shape).to(x)
        parts = torch.cat([rest + size * noise[number] for number, size in enumerate(self.noises)])
        return Report({"parts": parts, "labels": ctx.data.y.repeat(len(self.noises))}, {}, float(ctx.size))

    def _distil_loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        x, autoencoder, classifier = batch.x, _part(work, "vae"), _part(work, "classifier")
        net = self._vae(tuple(x.shape[1:]), ctx)
        mean, log_variance = encode(net, autoencoder, x, train=True)
        robust = decode(net, autoencoder, sample(mean, log_variance, batch.draw["code"]), train=True)
        noisy = [x - robust + size * batch.draw["noise"][number] for number, size in enumerate(self.noises)]
        rest = [ctx.task.loss(ctx.net.apply(classifier, each), batch.y) for each in noisy]
        return {
            "reconstruct": self.reconstruct * (x - robust).square().mean(),
            "kl": self.kl * gaussian_kl(mean, log_variance).mean() / self.latent,
            "sensitive": self.sensitive * torch.stack(rest).mean(),
            "plain": self.plain * ctx.task.loss(ctx.net.apply(classifier, x), batch.y),
        }

    def _vae(self, shape: tuple[int, ...], known: Setup | Context) -> Network:
        return vae(shape, self.hidden, self.latent, known.plan.seed, known.dtype)


def _part(distiller: Tree, name: str) -> Tree:
    """The model of one of the two networks that are trained together."""
    prefix = f"{name}."
    return {
        kind: {key.removeprefix(prefix): leaf for key, leaf in leaves.items() if key.startswith(prefix)}
        for kind, leaves in distiller.items()
    }
