"""FedFed."""

from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.method import Batch, Combined, Context, Part, Preset, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.asked import Asked
from fewfed.methods.parts.sharing import SendsRows
from fewfed.network import Network
from fewfed.networks.cvae import decode, encode, gaussian_kl, sample, vae
from fewfed.phase import Clock, Cohort, Combine, Phase, Role, Upload, shared_rows
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree

ADAMW = MappingProxyType({"optimizer": "adamw", "lr_decay": 0.0, "weight_decay": 1e-6})
KL_PARTS = 3
"""The release divides the KL by three beside the code's length, for grey images too."""


@dataclass(frozen=True)
class FedFed(FedAvg):
    """Yang et al., NeurIPS 2023: an autoencoder takes from inputs what classifies nothing; the noisy rest is shared.

    In the first `distil_rounds` rounds (at most half of a run) clients also train, in phase `distil`, an autoencoder
    and a classifier for it: 5·MSE(x, x_r) + 0.005·KL + 2·CE(x − x_r + noise) + 0.4·CE(x). Then every client uploads
    once, with the labels, x − x_r of all its rows, one copy for each noise; from there on a step takes, beside each
    local row, one shared row of each noise, every class alike. KL is a third of the mean over rows and code, the
    autoencoder's optimiser AdamW, both as released. Deviations: the global model trains by FedAvg during distillation,
    so that rounds compare; the autoencoder is dense, the release's is convolutional; AdamW begins anew each round; the
    release first trains on augmented and mixed inputs, and its curriculum makes the reconstruction's weight 50.
    """

    name = "fedfed"
    family = "data sharing"
    paper = "Yang et al., FedFed: Feature Distillation against Data Heterogeneity in Federated Learning, NeurIPS 2023"
    needs_classes = True
    steps_differ = "the first rounds also train the autoencoder, and later steps take three times the rows"
    presets = MappingProxyType({"config": Preset({"noises": (0.2, 0.25)}, note="configuration file of the release")})
    neutral = MappingProxyType({"distil_rounds": 0})

    distil_rounds: int = setting(15, "rounds of distillation; authors 15; 0 = FedAvg", ge=0)
    noises: tuple[float, ...] = setting((0.15, 0.25), "standard deviations of the noise on shared parts")
    reconstruct: float = setting(5.0, "weight of the reconstruction; authors 5", ge=0)
    kl: float = setting(0.005, "weight of the KL; authors 0.005", ge=0)
    sensitive: float = setting(2.0, "weight of classifying the noisy sensitive part; authors 2", ge=0)
    plain: float = setting(0.4, "weight of classifying the input; authors 0.4", ge=0)
    distil_lr: float = setting(1e-3, "AdamW rate of the distillation; authors 1e-3", gt=0)
    hidden: int = setting(256, "hidden width of the autoencoder", ge=1)
    latent: int = setting(64, "code length of the autoencoder", ge=1)

    def check(self, setup: Setup) -> None:
        if not setup.task.classes:
            raise ConfigError("method 'fedfed' shares class labels: expected a classification task")
        if not self.noises or min(self.noises) < 0:
            raise ConfigError(
                f"noises = {self.noises}: expected at least one standard deviation, none below 0", key="noises"
            )

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        distilling = min(self.distil_rounds, clock.rounds // 2)
        made = {"distiller": Upload(Combine.MEAN, Role.GENERATOR)}
        distil = Phase("distil", Distil(self), clock.epochs, made, training={**ADAMW, "lr": self.distil_lr})
        rows = shared_rows(len(self.noises), parts=Role.INPUTS, labels=Role.LABELS)
        share = Phase("share", Share(self), uploads=rows, cohort=Cohort.ALL)
        first = ((distil,) if clock.round < distilling else ()) + ((share,) if clock.round == distilling - 1 else ())
        return (*first, Phase("train", self, clock.epochs))

    def server_init(self, setup: Setup) -> Tree:
        models = {"vae": self.autoencoder(setup).model(), "classifier": setup.net.model()}
        joined = {
            kind: {f"{owner}.{name}": leaf for owner, model in models.items() for name, leaf in model[kind].items()}
            for kind in ("params", "buffers")
        }
        counts = torch.zeros(setup.task.classes, dtype=torch.long)
        return {**super().server_init(setup), "distiller": joined, "counts": counts}

    def broadcast(self, server: Tree) -> Tree:
        pool = {name: server[name] for name in ("parts", "labels", "of_class", "counts")} if "parts" in server else {}
        return {"model": server["model"], **pool}

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        """A shared row of each noise for each local row: the classes in turn, and any row of a class."""
        if not len(ctx.shared.get("labels", ())):
            return {}
        counts, of_class = ctx.shared["counts"], ctx.shared["of_class"]
        present, first = counts.nonzero().flatten(), counts.cumsum(0) - counts
        rows = []
        for number in range(len(self.noises)):
            label = present[random.cycle(len(present), size, f"class {number}").to(present.device)]
            place = (random.uniform(size).to(counts.device).double() * counts[label]).long()
            rows.append(len(self.noises) * of_class[first[label] + place] + number)
        return {"row": torch.cat(rows)}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        if batch.drawn:
            row = batch.drawn["row"]
            x, y = torch.cat([batch.x, ctx.shared["parts"][row]]), torch.cat([batch.y, ctx.shared["labels"][row]])
            batch = batch._replace(x=x, y=y)
        return super().loss(work, ctx, batch)

    def autoencoder(self, known: Setup | Context) -> Network:
        return vae(known.shape, self.hidden, self.latent, known.plan.seed, known.dtype)


class Distil(Part[FedFed]):
    """Clients train an autoencoder, and a classifier of what it leaves over, which are averaged."""

    def broadcast(self, server: Tree) -> Tree:
        return {"distiller": server["distiller"]}

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        code, noises = random.normal(size, self.method.latent), len(self.method.noises)
        return {"code": code, "noise": random.normal(noises, size, *ctx.shape)}

    def begin(self, ctx: Context) -> Tree:
        return tree.clone(ctx.shared["distiller"])

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        x, autoencoder, classifier = batch.x, _part(work, "vae"), _part(work, "classifier")
        method, net = self.method, self.method.autoencoder(ctx)
        mean, log_variance = encode(net, autoencoder, x, train=True)
        robust = decode(net, autoencoder, sample(mean, log_variance, batch.drawn["code"]), train=True)
        noisy = [x - robust + size * batch.drawn["noise"][number] for number, size in enumerate(method.noises)]
        rest = [ctx.task.loss(ctx.net.apply(classifier, each), batch.y) for each in noisy]
        return {
            "reconstruct": method.reconstruct * (x - robust).square().mean(),
            "kl": method.kl * gaussian_kl(mean, log_variance).mean() / (KL_PARTS * method.latent),
            "sensitive": method.sensitive * torch.stack(rest).mean(),
            "plain": method.plain * ctx.task.loss(ctx.net.apply(classifier, x), batch.y),
        }

    def end(self, work: Tree, ctx: Context) -> Report:
        return Report({"distiller": work}, {}, ctx.weight)


class Share(SendsRows, Asked[FedFed]):
    """Once, after distillation, every client uploads what the autoencoder leaves of its rows, with noise."""

    def broadcast(self, server: Tree) -> Tree:
        return {"vae": _part(server["distiller"], "vae")}

    @property
    def copies(self) -> int:
        return len(self.method.noises)

    def chosen(self, ctx: Context) -> Tensor:
        return torch.arange(ctx.size)

    def sends(self, work: Tree, ctx: Context, rows: Tensor) -> Tree:
        x, net, noises = ctx.data.x, self.method.autoencoder(ctx), self.method.noises
        mean, _ = encode(net, ctx.shared["vae"], x, train=False)
        rest = x - decode(net, ctx.shared["vae"], mean, train=False)
        noise = ctx.plan.fixed(ctx.client, "noise on shared parts").normal(len(noises), *x.shape).to(x)
        copies = torch.stack([rest + size * noise[number] for number, size in enumerate(noises)], 1)
        labels = ctx.data.y[rows].repeat_interleave(len(noises))
        return {"parts": copies[rows].flatten(0, 1), "labels": labels}

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        """Beside the pool, where the rows of each class are, counting the copies of one row as one."""
        labels = combined.values["labels"][:: len(self.method.noises)]
        counts = torch.bincount(labels, minlength=len(server["counts"]))
        return {**super().absorb(server, combined), "of_class": labels.argsort(stable=True), "counts": counts}


def _part(distiller: Tree, name: str) -> Tree:
    """The model of one of the two networks that are trained together."""
    prefix = f"{name}."
    return {
        kind: {key.removeprefix(prefix): leaf for key, leaf in leaves.items() if key.startswith(prefix)}
        for kind, leaves in distiller.items()
    }
