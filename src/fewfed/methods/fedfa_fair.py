"""FedFa, the fair one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed import tree
from fewfed.method import Combined, Context, Report, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.local_score import local_score
from fewfed.methods.parts.server_optim import weighted_mean
from fewfed.phase import Clock, Combine, Phase, Role, Upload
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class FedFaFair(FedAvg):
    """Huang et al. 2022 (SEM's "FedFA"): weights from accuracy and participation, and momentum on both sides.

    q_k = (1−beta)·A_k + beta·F_k with A_k = −log2(acc_k/Σacc + 1e-6), F_k = −log2(1 − f_k/Σf + 1e-5), each normalised
    over the cohort; acc is the training accuracy of the received model, f how often a client took part, this round
    included. w_new = Σ q_k·w_k, m ← gamma·m + (1−gamma)·(w_new − w), w ← w_new − pull·m; clients use SGD momentum
    gamma. The sign of the last step is that of an unofficial port and unverified: it pulls back towards the old model.
    Momentum acts on parameters only. The server sees every client's model and accuracy. Not the feature augmentation
    of the same name.
    """

    name = "fedfa-fair"
    family = "fairness"
    paper = "Huang et al., Fairness and Accuracy in Horizontal Federated Learning, Information Sciences 2022"
    neutral = None

    beta: float = setting(1.0, "weight of participation against accuracy; SEM's tables 1", ge=0, le=1)
    gamma: float = setting(0.0, "momentum of server and clients; SEM's tables 0", ge=0, lt=1)
    pull: float = setting(0.001, "step along the momentum; SEM's tables 0.001, their learning rate", ge=0)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        training = {"momentum": self.gamma} if self.gamma else {}
        uploads = {"model": Upload(Combine.KEEP, Role.MODEL), "accuracy": Upload(Combine.KEEP, Role.SCORE)}
        return (Phase("train", self, clock.epochs, uploads, training=training),)

    def server_init(self, setup: Setup) -> Tree:
        model = setup.net.model()
        times = torch.zeros(setup.clients, dtype=torch.float64)
        return {"model": model, "momentum": tree.zeros_like(model["params"]), "times": times}

    def begin(self, ctx: Context) -> Tree:
        return {**super().begin(ctx), "accuracy": torch.tensor(local_score(ctx).accuracy, dtype=torch.float64)}

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return report._replace(upload={**report.upload, "accuracy": work["accuracy"]})

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        names = [str(client) for client in combined.clients]
        present = server["times"].new_tensor(combined.clients, dtype=torch.long)
        times = server["times"].index_add(0, present, server["times"].new_ones(len(names)))
        accuracy = torch.stack([combined.values["accuracy"][name] for name in names])
        weights = fair_weights(accuracy, times[present], self.beta)
        mean = weighted_mean([combined.values["model"][name] for name in names], weights.tolist())
        moved = tree.sub(mean["params"], server["model"]["params"])
        momentum = tree.map(lambda m, d: self.gamma * m + (1 - self.gamma) * d, server["momentum"], moved)
        params = tree.sub(mean["params"], tree.scale(momentum, self.pull))
        return {**server, "model": {**mean, "params": params}, "momentum": momentum, "times": times}


def fair_weights(accuracy: Tensor, times: Tensor, beta: float) -> Tensor:
    """q_k of a cohort, summing to 1; a cohort without a single right answer shares equally."""
    by_accuracy = -(accuracy / accuracy.sum().clamp(min=1e-12) + 1e-6).log2()
    by_times = -(1 - times / times.sum() + 1e-5).log2()
    return (1 - beta) * by_accuracy / by_accuracy.sum() + beta * by_times / by_times.sum()
