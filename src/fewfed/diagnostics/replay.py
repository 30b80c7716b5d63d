"""A client's training of a finished round once more: its plan is a pure function, so it takes the same steps.

What is combined is not kept, so a local model, its batches and its draws can only be had by doing the work again.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from fewfed.engine.client import run_member
from fewfed.engine.job import Done, Job, Member
from fewfed.engine.loop import PhaseResult, RoundView
from fewfed.engine.threads import one_thread
from fewfed.errors import ConfigError
from fewfed.method import Batch, Context, Differentiate
from fewfed.phase import Clock, Cohort, Combine, Phase
from fewfed.tree import Tree
from fewfed.wrapper import Wrapper

MODEL = "model"


@dataclass(frozen=True)
class Turn:
    """One client's training: what it started from, what it ended with, and every batch with its draws."""

    client: int
    received: Tree
    """Everything that was broadcast to it."""
    model: Tree
    batches: tuple[Batch, ...]


def training_phase(phases: tuple[Phase, ...]) -> Phase | None:
    """The phase in which the round's clients train a model that is averaged."""
    return next(
        (
            phase
            for phase in phases
            if phase.epochs and phase.cohort is Cohort.ROUND and phase.uploads.get(MODEL) is Combine.MEAN
        ),
        None,
    )


def refuse_unrepeatable(job: Job) -> None:
    """Raise where a turn depends on what a finished round no longer holds."""
    for clock in (Clock(0, 1000, 1), Clock(1, 1000, 1)):
        phase = training_phase(job.method.phases(clock))
        if phase is None:
            raise ConfigError(f"method '{job.method.label}' trains no model that it uploads: nothing can be repeated")
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


def repeat(view: RoundView, client: int) -> Turn:
    """Train one client of a finished round again."""
    result = training_of(view)
    method = view.job.method
    if method.personal(view.server, result.phase, client):
        raise ConfigError(f"method '{method.label}' sends each client something of its own: it cannot be repeated")
    listening = _Listening(method)
    job = dataclasses.replace(view.job, method=listening)
    with one_thread():
        outcome = run_member(job, result.phase, view.clock, result.shared, Member(client))
    if not isinstance(outcome, Done):
        raise ConfigError(f"client {client} could not repeat its training: {outcome.reason}")
    return Turn(client, result.shared, outcome.upload[MODEL], tuple(listening.heard))


@dataclass(frozen=True)
class _Listening(Wrapper):
    """The same method, whose batches are written down."""

    heard: list[Batch] = field(default_factory=list)

    def gradient(self, differentiate: Differentiate, work: Tree, ctx: Context, batch: Batch) -> tuple[Tree, Tree]:
        self.heard.append(batch)
        return super().gradient(differentiate, work, ctx, batch)
