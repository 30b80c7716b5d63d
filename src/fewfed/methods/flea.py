"""FLea."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from torch import Tensor

from fewfed.buffer import with_history
from fewfed.losses import dependence, kl_divergence, mix, one_hot, soft_cross_entropy
from fewfed.method import Batch, Combined, Context, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import Clock, Combine, Phase
from fewfed.plan import Draws
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FLea(FedAvg):
    """Xia et al., KDD 2024: features of others are mixed into local ones, and features are kept unlike their inputs.

    f = E(x) is mixed with buffer rows, f~ = lam·f + (1−lam)·f^F, labels alike, lam ~ Beta(a, a) a row (Eq. 2). Loss:
    CE(H(f~), y~) + lambda1·KL(teacher, student on f~) (Eq. 4) + lambda2·R(x, f) (Eq. 5). After averaging, the same
    clients upload (E(x), y) of a fixed fraction of their rows: the next round's buffer; round 1 has none. Deviations,
    all flags: R, not R² (`power`); KL(global ‖ local) (`kl`). The released code's other loss: preset `official`.
    """

    name = "flea"
    family = "feature sharing"
    paper = "Xia et al., FLea: Addressing Data Scarcity and Label Skew in Federated Learning, KDD 2024"
    observed = frozenset({"correlation"})
    needs_classes = True
    neutral = MappingProxyType({"share": 0.0, "distil": 0.0, "decorrelate": 0.0})

    cut: str = setting("", "stage after which features are shared; empty = the network's own choice")
    share: float = setting(0.1, "fraction of a client's rows whose features are shared", ge=0, le=1)
    beta: float = setting(2.0, "lam ~ Beta(beta, beta); inf = the fixed 0.5 of the ablation", gt=0)
    distil: float = setting(1.0, "lambda1, weight of the distillation", ge=0)
    decorrelate: float = setting(3.0, "lambda2, weight of the decorrelation", ge=0)
    decorrelation: Literal["dcor", "trace", "rv"] = setting("dcor", "distance correlation (KDD) or a trace form (ICLR)")
    power: Literal[1, 2] = setting(1, "distance correlation R (1, as coded) or R² (2, as printed)")
    kl: Literal["global-local", "local-global"] = setting("global-local", "direction as coded, or as printed in Eq. 4")
    pairing: Literal["cycle", "truncate"] = setting("cycle", "a buffer row for every local row, or the shorter of both")
    history: int = setting(1, "rounds that features stay in the buffer; 1 = replaced, as the authors do", ge=1)
    bn_refresh: bool = setting(False, "an unmixed forward each step, so that BatchNorm sees unmixed features too")

    def check(self, setup: Setup) -> None:
        setup.net.position(self.cut or setup.net.cut)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", clock.epochs), Phase("share", 0, {"features": Combine.CONCAT, "labels": Combine.CONCAT}))

    def broadcast(self, server: Tree, phase: Phase) -> Tree:
        buffer = phase.name == "train" and len(server.get("labels", ())) > 0
        return {name: server[name] for name in ("model", *(("features", "labels") if buffer else ()))}

    def draw(self, draws: Draws, ctx: Context, size: int) -> Tree:
        if (count := len(ctx.shared.get("labels", ()))) == 0:
            return {}
        row = draws.cycle(count, size) if self.pairing == "cycle" else draws.loader(count, ctx.plan.batch)[:size]
        return {"row": row, "lam": draws.beta(self.beta, len(row))}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        cut = ctx.net.position(self.cut or ctx.net.cut)
        features, target = ctx.net.apply(work, batch.x, stop=cut), one_hot(batch.y, ctx.task.classes)
        relation = dependence(batch.x, features, self.decorrelation, self.power)
        if batch.draw and self.bn_refresh:
            ctx.net.apply(work, features.detach(), start=cut)
        if batch.draw:
            features, target = self.mixed(features, target, ctx, batch)
        seen, start = (features.detach(), cut) if batch.draw else (batch.x, 0)
        student = ctx.net.apply(work, features, start=cut)
        terms = {"task": soft_cross_entropy(student, target), "decorrelate": self.decorrelate * relation}
        if self.distil:
            teacher = ctx.net.apply(ctx.shared["model"], seen, start=start, train=False)
            p, q = (teacher, student) if self.kl == "global-local" else (student, teacher)
            terms["distil"] = self.distil * kl_divergence(p, q)
        return {**terms, "correlation": relation.detach()}

    def mixed(self, features: Tensor, target: Tensor, ctx: Context, batch: Batch) -> tuple[Tensor, Tensor]:
        row, lam = batch.draw["row"], batch.draw["lam"]
        theirs = one_hot(ctx.shared["labels"][row], ctx.task.classes)
        return mix(lam, features[: len(row)], ctx.shared["features"][row]), mix(lam, target[: len(row)], theirs)

    def end(self, work: Tree, ctx: Context) -> Report:
        if ctx.phase.name == "train":
            return super().end(work, ctx)
        rows = ctx.data.rows(self.shared_rows(ctx))
        features = ctx.net.apply(work, rows.x, stop=ctx.net.position(self.cut or ctx.net.cut), train=False)
        return Report({"features": features, "labels": rows.y}, {}, float(ctx.size))

    def absorb(self, server: Tree, phase: Phase, combined: Combined) -> Tree:
        after = super().absorb(server, phase, combined)
        return with_history(server, after, ("features", "labels"), self.history) if phase.name == "share" else after

    def shared_rows(self, ctx: Context) -> Tensor:
        count = max(1, int(self.share * ctx.size)) if self.share else 0
        return ctx.plan.fixed(ctx.client, "shared rows").choice(ctx.size, count, replace=False)
