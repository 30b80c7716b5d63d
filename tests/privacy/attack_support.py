"""A run in memory whose packets are kept, as attacks read them from a run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from recorded_run import recorded
from torch import Tensor, nn

from fewfed.conformance.clients import digits
from fewfed.conformance.reference import job_of
from fewfed.data.federation import Federation, GeneratedFederation
from fewfed.method import Combined, Context, Method, Part, Report
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.phase import Clock, Phase, Role, shared_rows
from fewfed.privacy.attacks.case import Case
from fewfed.privacy.attacks.finding import Finding, Measure
from fewfed.settings import setting
from fewfed.training import Training
from fewfed.tree import Tree


def digit_sites(sites: int = 20, rows: int = 40) -> Federation:
    """Sites with rows of their own, two classes each, no row at two sites."""
    train, test = digits()
    assert sites * rows <= len(train), "more rows than there are"
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[: sites * rows]
    order = order[torch.argsort(train.y[order], stable=True)]
    halves = order.reshape(2 * sites, rows // 2)
    mine = torch.randperm(2 * sites, generator=torch.Generator().manual_seed(1)).reshape(sites, 2)
    return GeneratedFederation(sites, lambda site: train.rows(halves[mine[site]].flatten()), test, 10)


@dataclass(frozen=True)
class Sends(FedAvg):
    """After training, means of `group` features behind the first stage leave a site, some of its rows, with noise."""

    name = "sends"

    group: int = setting(1, "rows behind each row sent", ge=1)
    noise: float = setting(0.0, "standard deviation", ge=0)
    signal: float = setting(1.0, "what features are multiplied by; 0 leaves the noise alone", ge=0)
    stop: int = setting(1, "stages that rows go through", ge=0)
    labelled: bool = setting(True, "whether labels are sent too")

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        roles = {"rows": Role.FEATURES, **({"labels": Role.LABELS} if self.labelled else {})}
        share = Phase("share", SendsRows(self), uploads=shared_rows(1.0, **roles))
        return (Phase("train", self, clock.epochs), share)

    def broadcast(self, server: Tree) -> Tree:
        return {"model": server["model"]}


class SendsRows(Part[Sends]):
    def end(self, work: Tree, ctx: Context) -> Report:
        method, origins = self.method, self.origins(ctx)
        x = ctx.data.x[origins]
        each = ctx.net.apply(work, x.flatten(0, 1), stop=method.stop, train=False)
        features = each.reshape(*x.shape[:2], *each.shape[1:]).mean(1)
        drawn = ctx.plan.fixed(ctx.client, "noise of sent rows").normal(*features.shape).to(features)
        labels = {"labels": ctx.data.y[origins[:, 0]]} if method.labelled else {}
        return Report({"rows": method.signal * features + method.noise * drawn, **labels}, {}, ctx.weight)

    def origins(self, ctx: Context) -> Tensor:
        """Groups of one class."""
        group = self.method.group
        mine = [(ctx.data.y == label).nonzero().flatten() for label in torch.unique(ctx.data.y).tolist()]
        parts = [rows[: len(rows) // group * group].reshape(-1, group) for rows in mine]
        return torch.cat(parts) if parts else torch.zeros(0, group, dtype=torch.long)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        return server


def invertible(seed: int = 0) -> Network:
    """A first stage that loses nothing: 64 numbers become 128, by a matrix."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first = nn.Sequential(nn.Flatten(), nn.Linear(64, 128))
        return Network("invertible", {"first": first, "head": nn.Linear(128, 10)}, cut="first")


def silent(words: str) -> None:
    """Nobody listens."""


def value_of(finding: Finding, beginning: str) -> Measure:
    """The measure whose name begins so."""
    return next(one for one in finding.measures if one.what.startswith(beginning))


def case_of(
    method: str | Method,
    values: Mapping[str, Any] | None = None,
    *,
    clients: Federation | None = None,
    net: Network | None = None,
    rounds: int = 1,
    cohort: int = 20,
    effort: float = 1.0,
) -> Case:
    """A short run on digits, ready to be attacked."""
    chosen = choose(method, values).method if isinstance(method, str) else method
    job = job_of(chosen, Training(epochs=1, batch=8, lr=0.003), clients or digit_sites())
    job = job if net is None else dataclasses.replace(job, net=net)
    return recorded(job, rounds=rounds, cohort=min(cohort, len(job.federation)), effort=effort)
