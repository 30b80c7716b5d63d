"""FedBR."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from fewfed import tree
from fewfed.errors import ConfigError
from fewfed.losses import one_hot, soft_cross_entropy
from fewfed.losses.features import contrast, flat_features
from fewfed.method import Batch, Context, Preset, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.asked import Asked
from fewfed.networks.projector import feature_width, projector, projector_weights
from fewfed.phase import Clock, Cohort, Phase, Role, shared_rows
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree

STAGE = "fedbr-projector"


@dataclass(frozen=True)
class FedBR(FedAvg):
    """Guo et al., ICML 2023: pseudo-samples debias the local classifier, and a projector debiases local features.

    Before round 1 the server learns `pseudo` unlabelled means of `group` rows, each of a random client, and sends them
    to all (register C20: not only to the first cohort); a client with fewer rows sends none. Each step mixes them with
    local rows, x~ = (x_p + x_j)/2, q = (1/C + onehot(y_j))/2. With l = −contrast(D z~, D z~_global, D z, 1/2) the
    projector D minimises mean l (max step) and the network CE + mu·mean(−l) + lam·CE(q, x~) (min step): two terms of
    one loss, each with the other's part detached, so both steps are taken at once. D is each client's own, made anew
    every round. The numbers are those of FLea's port; preset `official`: the authors' lam, SGD and wide projector
    (d to 2d to 2d to d).
    """

    name = "fedbr"
    family = "data sharing"
    paper = "Guo et al., FedBR: Improving FL on Heterogeneous Data via Local Learning Bias Reduction, ICML 2023"
    needs_classes = True
    needs_stages = True
    presets = MappingProxyType(
        {"official": Preset({"lam": 1.0, "projector": "wide"}, {"optimizer": "sgd", "lr": 0.01, "weight_decay": 0.0})}
    )
    neutral = MappingProxyType({"pseudo": 0})

    mu: float = setting(0.5, "weight of the contrast; authors 0.5", ge=0)
    lam: float = setting(0.8, "weight of the pseudo-samples' cross-entropy; authors 1.0, FLea's port 0.8", ge=0)
    pseudo: int = setting(32, "how many pseudo-samples there are; authors 32", ge=0)
    group: int = setting(10, "rows in one pseudo-sample; authors 10", ge=1)
    mixture: bool = setting(True, "mix pseudo-samples with local rows; optional in the authors' code")
    projector: Literal["port", "wide"] = setting("port", "layers of 256, 256 and 512, or of 2d, 2d and d")

    def check(self, setup: Setup) -> None:
        if not setup.task.classes:
            raise ConfigError("method 'fedbr' gives pseudo-samples uniform labels: expected a classification task")

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        pseudo = shared_rows(self.pseudo, pseudo=Role.INPUTS)
        setup = (Phase("setup", PseudoSamples(self), uploads=pseudo, cohort=Cohort.ALL),) if clock.first else ()
        return (*setup, Phase("train", self, clock.epochs))

    def server_init(self, setup: Setup) -> Tree:
        owners = setup.plan.fixed(0, "owners of pseudo-samples").integers(setup.clients, self.pseudo)
        return {"model": setup.net.model(), "asked": torch.bincount(owners, minlength=setup.clients)}

    def broadcast(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("model", "pseudo")}

    def begin(self, ctx: Context) -> Tree:
        work = super().begin(ctx)
        if len(ctx.shared["pseudo"]):
            width = feature_width(ctx.net, ctx.shape)
            random = ctx.plan.random(ctx.clock.round, STAGE, ctx.client)
            own = projector_weights(STAGE, width, self._widths(width), random)
            work["params"] |= tree.to(own, ctx.data.x.device)
        return work

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        count = len(ctx.shared["pseudo"])
        return {"row": random.cycle(count, size), "partner": random.permutation(size)} if count else {}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        if not batch.drawn:
            return super().loss(work, ctx, batch)
        cut = ctx.net.penultimate
        pseudo, target = self._pseudo(ctx, batch)
        local, mixed = (ctx.net.apply(work, x, stop=cut) for x in (batch.x, pseudo))
        received = flat_features(ctx.net.apply(ctx.shared["model"], pseudo, stop=cut, train=False))
        z, z_mixed = flat_features(local), flat_features(mixed)
        params = work["params"]
        ours = {name: value for name, value in params.items() if name.startswith(STAGE)}
        debias = self._contrast(tree.detach(ours), z_mixed, received, z)
        oppose = -self._contrast(ours, z_mixed.detach(), received, z.detach())
        return {
            "task": ctx.task.loss(ctx.net.apply(work, local, start=cut), batch.y),
            "pseudo": self.lam * soft_cross_entropy(ctx.net.apply(work, mixed, start=cut), target),
            "contrast": self.mu * debias,
            "projector": oppose,
        }

    def end(self, work: Tree, ctx: Context) -> Report:
        network = {name: work["params"][name] for name in ctx.shared["model"]["params"]}
        return super().end({**work, "params": network}, ctx)

    def _pseudo(self, ctx: Context, batch: Batch) -> tuple[Tensor, Tensor]:
        """A batch of pseudo-samples and their soft labels."""
        pseudo, labels = ctx.shared["pseudo"][batch.drawn["row"]], one_hot(batch.y, ctx.task.classes)
        uniform = torch.full_like(labels, 1 / ctx.task.classes)
        if not self.mixture:
            return pseudo, uniform
        partner = batch.drawn["partner"]
        return (pseudo + batch.x[partner]) / 2, (uniform + labels[partner]) / 2

    def _contrast(self, weights: Tree, mixed: Tensor, received: Tensor, local: Tensor) -> Tensor:
        width = local.shape[1]
        head = projector(STAGE, width, self._widths(width))
        model = {"params": weights, "buffers": {}}
        anchor, positive, negative = head.apply(model, torch.cat([mixed, received, local])).chunk(3)
        return contrast(anchor, positive, negative, temperature=0.5)

    def _widths(self, width: int) -> tuple[int, ...]:
        return (256, 256, 512) if self.projector == "port" else (2 * width, 2 * width, width)


class PseudoSamples(Asked[FedBR]):
    """Before round 1 the server asks random clients for means of their rows."""

    def personal(self, server: Tree, client: int) -> Tree:
        return {"asked": server["asked"][client]}

    def end(self, work: Tree, ctx: Context) -> Report:
        chosen = [ctx.data.x[rows].mean(0) for rows in self.origins(ctx)]
        return Report({"pseudo": torch.stack(chosen) if chosen else ctx.data.x[:0]}, {}, ctx.weight)

    def origins(self, ctx: Context) -> Tensor:
        group, random = self.method.group, ctx.plan.fixed(ctx.client, "rows of pseudo-samples")
        count = int(ctx.personal["asked"]) if ctx.size >= group else 0
        chosen = [random.choice(ctx.size, group, replace=False) for _ in range(count)]
        return torch.stack(chosen) if chosen else super().origins(ctx)
