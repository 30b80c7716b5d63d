"""A method whose every turn is recorded: what a client was given, what it held, and what it handed over."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fewfed import tree
from fewfed.engine.job import Job
from fewfed.method import Context, Exchange, Method, Report
from fewfed.phase import Clock, Phase
from fewfed.tree import Tree

Leaves = dict[str, Tensor]


@dataclass(frozen=True)
class Turn:
    """One client's turn in a phase: leaves by path."""

    phase: str
    client: int
    given: Leaves
    """Broadcast and personal part."""
    held: Leaves
    """The work tree after the last step, and the state before and after it."""
    sent: Leaves


@dataclass
class Watch:
    """Stands for the functions of a phase and notes what `end` sees and returns."""

    does: Exchange
    phase: Phase
    turns: list[Turn]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.does, name)

    def end(self, work: Tree, ctx: Context) -> Report:
        report = self.does.end(work, ctx)
        if not bool(ctx.data.x.any()):
            return report  # A blank client, which only shows shapes, or the server itself.
        given: Tree = {"shared": ctx.shared, "personal": ctx.personal}
        held: Tree = {"work": work, "before": ctx.state, "after": report.state}
        parts = (dict(tree.leaves(tree.clone(tree.detach(part)))) for part in (given, held, report.upload))
        self.turns.append(Turn(self.phase.name, ctx.client, *parts))
        return report


@dataclass
class Phases:
    """Stands for a method and has every phase watched."""

    method: Method
    turns: list[Turn] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        found = self.method.phases(clock)
        return tuple(dataclasses.replace(phase, does=self._watched(phase)) for phase in found)

    def _watched(self, phase: Phase) -> Any:
        return Watch(phase.does, phase, self.turns)


def watched(job: Job) -> tuple[Job, list[Turn]]:
    """The same job, and the list that fills with the turns of its clients."""
    method: Any = Phases(job.method)
    return dataclasses.replace(job, method=method), method.turns
