"""Elastic aggregation."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed import tree
from fewfed.method import Combined, Context, Report
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import MODEL, Clock, Combine, Phase, Role, Upload
from fewfed.settings import setting
from fewfed.tree import Tree


@dataclass(frozen=True)
class Elastic(FedAvg):
    """Chen et al., CVPR 2023: parameters that the output hardly depends on may move further at the server.

    Before training a client measures, for each parameter tensor l, Omega_l = EMA (factor mu) over batches of
    ‖d mean‖f(x)‖²/dw_l‖² at the received model; no labels. Server: zeta_l = 1 + tau − Σ p_k·Omega_kl / max_k Omega_kl,
    w_l ← w_l + zeta_l·Σ p_k·(w_kl − w_l), zeta in [tau, 1 + tau). BatchNorm statistics are averaged. Deviations: the
    average starts afresh each round and is divided by 1 − mu^batches, else clients with few batches would count as
    insensitive. No released code was available; what goes beyond these formulas is unverified. The server sees each
    client's sensitivities, one number a tensor.
    """

    name = "elastic"
    family = "server optimiser"
    paper = "Chen et al., Elastic Aggregation for Federated Optimization, CVPR 2023"
    neutral = None

    tau: float = setting(0.5, "smallest factor on a tensor's change; authors 0.5", ge=0)
    mu: float = setting(0.95, "memory of the moving average over batches; authors 0.95", ge=0, lt=1)
    share: float = setting(1.0, "fraction of a client's rows to measure on; public ports 0.3", gt=0, le=1)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, {**MODEL, "sensitivity": Upload(Combine.KEEP, Role.STATISTICS)}),)

    def begin(self, ctx: Context) -> Tree:
        return {**super().begin(ctx), "sensitivity": self.sensitivity(ctx)}

    def sensitivity(self, ctx: Context) -> Tree:
        """Omega of every parameter tensor at the broadcast model."""
        model = ctx.shared["model"]

        def output_energy(params: Tree, x: Tensor) -> Tensor:
            output: Tensor = ctx.net.apply({**model, "params": params}, x, train=False)
            return output.flatten(1).square().sum(1).mean()

        count = max(1, round(self.share * ctx.size))
        rows = ctx.plan.fixed(ctx.client, "sensitivity rows").choice(ctx.size, count, replace=False)
        total = tree.map(lambda leaf: leaf.new_zeros(()), model["params"])
        batches = [rows[start : start + ctx.plan.batch] for start in range(0, count, ctx.plan.batch)]
        for batch in batches:
            slope = torch.func.grad(output_energy)(model["params"], ctx.data.x[batch])
            total = tree.map(lambda old, g: self.mu * old + (1 - self.mu) * g.square().sum(), total, slope)
        return tree.scale(total, 1 / (1 - self.mu ** len(batches)))

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return report._replace(upload={**report.upload, "sensitivity": work["sensitivity"]})

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        mean = combined.values["model"]
        measured = tree.stack([combined.values["sensitivity"][str(client)] for client in combined.clients])
        factor = tree.map(lambda omega: self.elasticity(omega, combined.weights), measured)
        params = tree.map(lambda w, m, zeta: w + zeta * (m - w), server["model"]["params"], mean["params"], factor)
        return {**server, "model": {**mean, "params": params}}

    def elasticity(self, omega: Tensor, weights: tuple[float, ...]) -> Tensor:
        """zeta of one tensor from every client's sensitivity; clients that all measured 0 are equally sensitive."""
        p = omega.new_tensor(weights) / sum(weights)
        largest = omega.max()
        relative = torch.where(largest > 0, omega / largest.clamp(min=torch.finfo(omega.dtype).tiny), 1.0)
        return 1 + self.tau - (p * relative).sum()
