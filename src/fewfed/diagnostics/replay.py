"""A client's training of a finished round once more: its plan is a pure function, so it takes the same steps.

What is combined is not kept, so a local model, its batches and what it drew can only be had by doing the work again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, cast

from fewfed.engine.job import Job
from fewfed.engine.loop import PhaseResult, RoundView
from fewfed.engine.outcomes import Finished
from fewfed.engine.threads import one_thread
from fewfed.engine.turn import Member, run_turn
from fewfed.errors import ConfigError
from fewfed.method import Batch, Context, Differentiate, Exchange
from fewfed.phase import Clock, Cohort, Combine, Phase, Role
from fewfed.tree import Tree


@dataclass(frozen=True)
class Repeated:
    """One client's training: what it started from, what it ended with, and every batch with what was drawn for it."""

    client: int
    received: Tree
    """Everything that was broadcast to it."""
    model: Tree
    batches: tuple[Batch, ...]


def model_upload(phase: Phase) -> str:
    """The name under which a phase uploads the model that is averaged; nothing where it does not."""
    declared = phase.uploads.items()
    return next((name for name, up in declared if up.role is Role.MODEL and up.combine is Combine.MEAN), "")


def training_phase(phases: tuple[Phase, ...]) -> Phase | None:
    """The phase in which the round's clients train a model that is averaged."""
    trained = (phase for phase in phases if phase.epochs and phase.cohort is Cohort.ROUND and model_upload(phase))
    return next(trained, None)


def refuse_unrepeatable(job: Job) -> None:
    """Raise where a turn depends on what a finished round no longer holds."""
    for clock in (Clock(0, 1000, 1), Clock(1, 1000, 1)):
        phase = training_phase(job.method.phases(clock))
        if phase is None:
            raise ConfigError(f"method '{job.method.label}' trains no model that it uploads: nothing can be repeated")
        if job.keeps_moments(phase):
            raise ConfigError(
                "reset = 'never' keeps moments of the optimiser on clients, so their training cannot be repeated "
                "afterwards: expected reset = 'round' or 'step'"
            )
        if phase.keeps_state or job.method.personal_model:
            raise ConfigError(
                f"method '{job.method.label}' keeps state on its clients, so their training cannot be repeated "
                "afterwards: expected a method without client state"
            )


def training_of(view: RoundView) -> PhaseResult:
    """The round's training as it was recorded."""
    phase = training_phase(tuple(result.phase for result in view.phases))
    if phase is None:
        raise ConfigError(f"round {view.clock.round + 1} trained no model that was uploaded: nothing can be repeated")
    return next(result for result in view.phases if result.phase is phase)


def repeat(view: RoundView, client: int) -> Repeated:
    """Train one client of a finished round again."""
    result, job = training_of(view), view.job
    if result.phase.does.personal(view.server, client):
        raise ConfigError(f"method '{job.method.label}' sends each client something of its own: it cannot be repeated")
    heard: list[Batch] = []
    phase = dataclasses.replace(result.phase, does=cast(Exchange, _Listening(result.phase.does, heard)))
    member = Member(client, state=job.method.client_init(job.setup))
    with one_thread():
        found = run_turn(job, phase, view.clock, result.shared, member)
    if not isinstance(found, Finished):
        raise ConfigError(f"client {client} could not repeat its training: {found.reason}")
    return Repeated(client, result.shared, found.packet.arrays[model_upload(phase)], tuple(heard))


@dataclass(frozen=True)
class _Listening:
    """The functions of a phase, whose batches are written down."""

    does: Exchange
    heard: list[Batch] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.does, name)

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        self.heard.append(batch)
        return self.does.gradient(differentiate, work, ctx, batch)
