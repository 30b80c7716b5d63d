"""FedFV."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from fewfed import tree
from fewfed.method import Combined, Context, Preset, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.local_score import local_score
from fewfed.methods.parts.server_optim import weighted_mean
from fewfed.phase import Clock, Combine, Phase, Role, Upload
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedFV(FedAvg):
    """Wang et al., IJCAI 2021: client updates that contradict each other are projected before they are averaged.

    g_k = w − w_k. In ascending order of the training loss at w, every client outside the alpha fraction with the
    largest losses loses its component against each conflicting original g_j; the uniform mean then loses its component
    against the sum of conflicting last updates of absent clients, rounds t−tau to t−1, oldest first (the authors' two
    code generations index this history differently); the result is rescaled to ‖mean g_k‖ and w ← w − g. Norms are
    over all parameters together; BatchNorm statistics are averaged uniformly. The server sees every client's model and
    loss, and with tau > 0 keeps the updates of tau rounds. Preset `sem`: what SEM's tables use, alpha inferred.
    """

    name = "fedfv"
    family = "fairness"
    paper = "Wang et al., Federated Learning with Fair Averaging, IJCAI 2021"
    presets = MappingProxyType({"sem": Preset({"alpha": 0.5, "tau": 0}, note="SEM's comparison; alpha inferred")})
    neutral = None
    another_aim = "in one dimension opposite updates contradict each other entirely, so it goes where neither is worse"

    alpha: float = setting(0.1, "fraction of clients, those with the largest losses, left as they are", ge=0, le=1)
    tau: int = setting(1, "rounds of absent clients' updates that count; 0 = none", ge=0)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        uploads = {"model": Upload(Combine.KEEP, Role.MODEL), "start_loss": Upload(Combine.KEEP, Role.SCORE)}
        return (Phase("train", self, clock.epochs, uploads),)

    def server_init(self, setup: Setup) -> Tree:
        return {**super().server_init(setup), "round": torch.tensor(0), "past": {}}

    def begin(self, ctx: Context) -> Tree:
        return {**super().begin(ctx), "start_loss": torch.tensor(local_score(ctx).mean_loss)}

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return report._replace(upload={**report.upload, "start_loss": work["start_loss"]})

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        names = [str(client) for client in combined.clients]
        models, losses = combined.values["model"], combined.values["start_loss"]
        params = server["model"]["params"]
        updates = [tree.sub(params, models[name]["params"]) for name in names]
        order = sorted(range(len(names)), key=lambda k: float(losses[names[k]]))
        now = int(server["round"])
        past = {age: _without(server["past"].get(str(now - age), {}), names) for age in range(self.tau, 0, -1)}
        ahead = fair_update(updates, order, self.alpha, [list(past[age].values()) for age in past if now >= self.tau])
        buffers = weighted_mean([models[name]["buffers"] for name in names], [1.0] * len(names))
        # Of absent clients the last update stays; of this round's it is the new one.
        kept = {str(now - age): absent for age, absent in past.items() if age < self.tau and absent}
        if self.tau:
            kept[str(now)] = dict(zip(names, updates, strict=True))
        model = {"params": tree.sub(params, ahead), "buffers": buffers}
        return {**server, "model": model, "round": server["round"] + 1, "past": kept}


def fair_update(updates: Sequence[Tree], order: Sequence[int], alpha: float, past: Sequence[Sequence[Tree]]) -> Tree:
    """The combined update; `order` lists clients by ascending loss, `past` earlier updates by round, oldest first."""
    projected = list(updates)
    protected = order[len(order) - math.ceil(alpha * len(order) - 1e-9) :]
    for k in range(len(updates)):
        for j in order:
            if j != k and k not in protected:
                projected[k] = _without_conflict(projected[k], updates[j])
    equal = [1.0] * len(updates)
    result = weighted_mean(projected, equal)
    for earlier in past:
        against = [update for update in earlier if tree.dot(result, update) < 0]
        if against:
            total = tree.scale(weighted_mean(against, [1.0] * len(against)), len(against))
            result = _without_conflict(result, total)
    length, wanted = _norm(result), _norm(weighted_mean(updates, equal))
    return tree.scale(result, wanted / length if length > 0 else 1.0)


def _without_conflict(update: Tree, other: Tree) -> Tree:
    overlap, square = float(tree.dot(update, other)), float(tree.dot(other, other))
    # An update so small that its square vanishes has no direction to speak of.
    return tree.sub(update, tree.scale(other, overlap / square)) if overlap < 0 < square else update


def _norm(update: Tree) -> float:
    return math.sqrt(float(tree.dot(update, update)))


def _without(updates: Tree, names: Sequence[str]) -> Tree:
    return {name: update for name, update in updates.items() if name not in names}
