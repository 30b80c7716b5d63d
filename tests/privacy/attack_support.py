"""A run in memory whose packets are kept, as attacks read them from a run folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fewfed import tree
from fewfed.conformance.clients import digits
from fewfed.conformance.reference import job_of
from fewfed.data.federation import Federation, GeneratedFederation
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job, is_inside
from fewfed.engine.loop import run_rounds
from fewfed.engine.outcomes import Done, Outcome
from fewfed.engine.packet import Packet
from fewfed.method import Method
from fewfed.methods.registry import choose
from fewfed.privacy.attacks.case import Case
from fewfed.training import Training
from fewfed.tree import Tree


@dataclass(frozen=True)
class Kept:
    """One phase of one round."""

    round: int
    phase: str
    broadcast: Tree
    packets: Mapping[int, Packet]
    personal: Mapping[int, Tree]


@dataclass
class KeptRecord:
    """What `fewfed.privacy.record.Record` is to attacks."""

    kept: list[Kept] = field(default_factory=list)

    @property
    def rounds(self) -> tuple[int, ...]:
        return tuple(sorted({one.round for one in self.kept}))

    def exchanges(self, round: int) -> tuple[Kept, ...]:
        return tuple(one for one in self.kept if one.round == round)


class Keeping(Sequential):
    """The reference executor, which keeps what crosses."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.record = KeptRecord()

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        invited: list[Invited] = list(members)
        packets: dict[int, Packet] = {}
        broadcast = tree.clone(briefing.shared)
        for outcome in super().run(briefing, invited):
            if isinstance(outcome, Done):
                packet = outcome.packet
                packets[packet.sender] = dataclasses.replace(packet, arrays=tree.clone(packet.arrays))
            yield outcome
        if not is_inside(briefing.phase):
            personal = {one.client: one.personal for one in invited if one.personal}
            self.record.kept.append(Kept(briefing.clock.round + 1, briefing.phase.name, broadcast, packets, personal))


def digit_sites(sites: int = 20, rows: int = 40) -> Federation:
    """Sites with rows of their own, two classes each, no row at two sites."""
    train, test = digits()
    order = torch.argsort(train.y, stable=True)[: sites * rows] if sites * rows <= len(train) else None
    assert order is not None, "more rows than there are"
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[: sites * rows]
    order = order[torch.argsort(train.y[order], stable=True)]
    halves = order.reshape(2 * sites, rows // 2)
    mine = torch.randperm(2 * sites, generator=torch.Generator().manual_seed(1)).reshape(sites, 2)
    return GeneratedFederation(sites, lambda site: train.rows(halves[mine[site]].flatten()), test, 10)


def case_of(
    method: str | Method,
    values: Mapping[str, Any] | None = None,
    *,
    clients: Federation | None = None,
    net: Any = None,
    rounds: int = 1,
    cohort: int = 20,
    effort: float = 1.0,
) -> Case:
    """A short run on digits, ready to be attacked."""
    chosen = choose(method, values).method if isinstance(method, str) else method
    job = job_of(chosen, Training(epochs=1, batch=8, lr=0.003), clients or digit_sites())
    job = job if net is None else dataclasses.replace(job, net=net)
    executor = Keeping(job)
    run_rounds(job, executor, [], rounds=rounds, cohort=min(cohort, len(job.federation)))
    return Case(job, rounds, executor.record, effort=effort)
