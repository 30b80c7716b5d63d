"""A short run in memory whose packets are all kept, as attacks see it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from fewfed import tree
from fewfed.engine.executor import Briefing, Invited
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job, is_inside
from fewfed.engine.loop import run_rounds
from fewfed.engine.outcomes import Done, Outcome
from fewfed.engine.packet import Packet
from fewfed.privacy.attacks.case import Case
from fewfed.tree import Tree


@dataclass(frozen=True)
class Exchanged:
    """One phase of one round, as a record hands it out."""

    round: int
    phase: str
    broadcast: Tree
    packets: Mapping[int, Packet]
    personal: Mapping[int, Tree]


@dataclass
class Kept:
    """Exchanges by round, as `Record` hands them out."""

    by_round: dict[int, list[Exchanged]] = field(default_factory=dict)

    @property
    def rounds(self) -> tuple[int, ...]:
        return tuple(self.by_round)

    def exchanges(self, round: int) -> tuple[Exchanged, ...]:
        return tuple(self.by_round.get(round, ()))


class Keeping(Sequential):
    """Writes down what crosses between server and clients."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.kept = Kept()

    def run(self, briefing: Briefing, members: Iterable[Invited]) -> Iterator[Outcome]:
        invited = list(members)
        packets: dict[int, Any] = {}
        personal = {one.client: tree.clone(one.personal) for one in invited if one.personal}
        shared = tree.clone(briefing.shared)
        number = briefing.clock.round + 1
        found = Exchanged(number, briefing.phase.name, shared, packets, personal)
        if not is_inside(briefing.phase):  # Nothing crosses then.
            self.kept.by_round.setdefault(number, []).append(found)
        for outcome in super().run(briefing, invited):
            if isinstance(outcome, Done) and outcome.packet.sender >= 0:
                one = outcome.packet
                packets[one.sender] = type(one)(
                    one.round, one.phase, one.sender, one.weight, tree.clone(one.arrays), dict(one.metrics)
                )
            yield outcome


def recorded(job: Job, *, rounds: int = 2, cohort: int | None = None, seed: int = 0, effort: float = 1.0) -> Case:
    """Run a job and keep everything."""
    executor = Keeping(job)
    run_rounds(job, executor, (), rounds=rounds, cohort=cohort or len(job.federation))
    return Case(job, rounds, executor.kept, torch.device("cpu"), seed, effort)


def silent(_: str) -> None:
    """What an attack is told to say its progress to, where nobody listens."""
