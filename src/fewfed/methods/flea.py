"""FLea."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from torch import Tensor

from fewfed.losses import dependence, kl_divergence, one_hot, soft_cross_entropy
from fewfed.method import Batch, Combined, Context, Part, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts import cuts
from fewfed.methods.parts.buffer import fixed_rows, mixed_with_buffer, model_and_buffer, partners, with_history
from fewfed.methods.parts.sharing import SendsFeatures
from fewfed.methods.parts.watched import LOGGED, correlations, last_epoch
from fewfed.phase import Clock, Phase, Role, shared_rows
from fewfed.plan import Random
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FLea(FedAvg):
    """Xia et al., KDD 2024: features of others are mixed into local ones, and features are kept unlike their inputs.

    f = E(x) is mixed with buffer rows, f~ = lam·f + (1−lam)·f^F, labels alike, lam ~ Beta(a, a) a row (Eq. 2). Loss:
    CE(H(f~), y~) + lambda1·KL(teacher, student on f~) (Eq. 4) + lambda2·R(x, f) (Eq. 5). After averaging, the same
    clients upload (E(x), y) of a fixed part of their rows: the next round's buffer, empty in round 1. Deviations, all
    flags: R, not R² (`power`); KL(global ‖ local) (`kl`); ICLR's forms centred (`centred`). `official`: another loss.
    """

    name = "flea"
    family = "feature sharing"
    paper = "Xia et al., FLea: Addressing Data Scarcity and Label Skew in Federated Learning, KDD 2024"
    observed = LOGGED
    mixes = ("row", "lam")
    needs_classes = True
    neutral = MappingProxyType({"share": 0.0, "distil": 0.0, "decorrelate": 0.0})

    cut: str = setting("", "stage after which features are shared; empty = the network's own; middle; input = raw rows")
    share: float = setting(0.1, "fraction of a client's rows whose features are shared", ge=0, le=1)
    beta: float = setting(2.0, "lam ~ Beta(beta, beta); inf = the fixed 0.5 of the ablation", gt=0)
    distil: float = setting(1.0, "lambda1, weight of the distillation", ge=0)
    decorrelate: float = setting(3.0, "lambda2, weight of the decorrelation", ge=0)
    decorrelation: Literal["dcor", "trace", "rv"] = setting("dcor", "distance correlation (KDD) or a trace form (ICLR)")
    centred: bool = setting(True, "trace forms: columns are centred first; false = as Eq. 5 of ICLR prints them")
    power: Literal[1, 2] = setting(1, "distance correlation R (1, as coded) or R² (2, as printed)")
    kl: Literal["global-local", "local-global"] = setting("global-local", "direction as coded, or as printed in Eq. 4")
    pairing: Literal["cycle", "truncate"] = setting("cycle", "a buffer row for every local row, or the shorter of both")
    raw: float = setting(0.0, "weight of the cross-entropy of unmixed rows beside the mixed ones; 0 = none, FLea", ge=0)
    history: int = setting(1, "rounds that features stay in the buffer; 1 = replaced, as the authors do", ge=1)
    watch: bool = setting(False, "also log the correlation of the last local epoch, and its unbiased R² (Fig. 9b)")
    bn_refresh: bool = setting(False, "an unmixed forward each step, so that BatchNorm sees unmixed features too")

    def check(self, setup: Setup) -> None:
        cuts.check(setup, self.cut, self.name, shares=self.share > 0)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        rows = shared_rows(self.share, features=cuts.role_at(self.cut), labels=Role.LABELS)
        return (Phase("train", self, clock.epochs), Phase("share", Share(self), uploads=rows))

    def broadcast(self, server: Tree) -> Tree:
        return model_and_buffer(server, ("features", "labels"))

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        drawn = last_epoch(random, ctx) if self.watch else {}
        return {**drawn, **partners(random, ctx, size, self.pairing, self.beta)}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        cut = cuts.position(ctx, self.cut)
        features, target = ctx.net.apply(work, batch.x, stop=cut), one_hot(batch.y, ctx.task.classes)
        relation = dependence(batch.x, features, self.decorrelation, self.power, self.centred)
        mixing = "row" in batch.drawn
        if mixing and self.bn_refresh:
            ctx.net.apply(work, features.detach(), start=cut)
        mixed, target = mixed_with_buffer(features, target, ctx, batch) if mixing else (features, target)
        seen, start = (mixed.detach(), cut) if mixing else (batch.x, 0)
        student = ctx.net.apply(work, mixed, start=cut)
        terms = {"task": soft_cross_entropy(student, target), "decorrelate": self.decorrelate * relation}
        if self.distil:
            teacher = ctx.net.apply(ctx.shared["model"], seen, start=start, train=False)
            p, q = (teacher, student) if self.kl == "global-local" else (student, teacher)
            terms["distil"] = self.distil * kl_divergence(p, q)
        if mixing and self.raw:
            terms["raw"] = self.raw * ctx.task.loss(ctx.net.apply(work, features, start=cut), batch.y)
        return {**terms, **correlations(relation, features, batch)}


class Share(SendsFeatures, Part[FLea]):
    """After averaging, the round's clients upload features of their chosen rows: the next round's buffer."""

    def shares_at(self, known: Setup | Context) -> int:
        return cuts.position(known, self.method.cut)

    def chosen(self, ctx: Context) -> Tensor:
        return fixed_rows(ctx, self.method.share)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        return with_history(server, super().absorb(server, combined), ("features", "labels"), self.method.history)
