"""What an executor is given and what it gives back. Everything here is plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fewfed.data.federation import Federation
from fewfed.errors import ConfigError
from fewfed.method import Method, Setup
from fewfed.network import Network
from fewfed.phase import Clock, Cohort, Phase
from fewfed.plan import Plan
from fewfed.task import Score, Task
from fewfed.training import Training
from fewfed.tree import Tree

PSEUDO_CLIENT = -1
"""The number of the one member of a phase that the server, or nobody in particular, runs."""


@dataclass(frozen=True)
class Job:
    """Everything that stays the same over a run."""

    method: Method
    net: Network
    task: Task
    federation: Federation
    training: Training
    plan: Plan

    @property
    def setup(self) -> Setup:
        plan = dataclasses.replace(self.plan, dtype=self.net.dtype)
        return Setup(self.net, self.task, plan, len(self.federation), tuple(self.federation.shape))

    def check(self) -> None:
        """Raise `ConfigError` where the method does not fit the task or the network."""
        if self.method.needs_classes and not self.task.classes:
            raise ConfigError(
                f"method '{self.method.label}' needs class labels: expected a classification task, not "
                f"{type(self.task).__name__.lower()}; use a method that does not (such methods mix or count no labels)"
            )
        self.method.check(self.setup)

    def training_of(self, phase: Phase) -> Training:
        """The run's training with what a phase sets for itself."""
        return dataclasses.replace(self.training, **phase.training) if phase.training else self.training

    def phase(self, name: str, clock: Clock) -> Phase:
        """The phase of that name in a round."""
        return next(phase for phase in self.method.phases(clock) if phase.name == name)


@dataclass(frozen=True)
class Member:
    """One client's turn: what it alone receives and what it remembers."""

    client: int
    personal: Tree = field(default_factory=dict)
    state: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Done:
    """A client's finished turn."""

    client: int
    upload: Tree
    state: Tree
    weight: float
    steps: int
    terms: dict[str, float]
    """Mean of each loss term over the steps."""


@dataclass(frozen=True)
class Failed:
    """A client that is left out of a phase, and why."""

    client: int
    phase: str
    reason: str


Outcome = Done | Failed


@dataclass(frozen=True)
class Block:
    """Several finished turns at once, for executors that keep them side by side; combined in one go."""

    done: tuple[Done, ...]


class Executor(Protocol):
    """Runs one phase for its members. Outcomes come in the order of the members, whatever ran first."""

    def place(self, server: Tree) -> Tree:
        """The server's tree where this executor works."""

    def run(self, phase: Phase, clock: Clock, shared: Tree, members: Iterable[Member]) -> Iterator[Outcome | Block]:
        """One outcome for every member."""

    def evaluate(self, models: Iterable[Tree]) -> list[Score]:
        """Score every model on the whole test part."""

    def events(self) -> list[str]:
        """What happened since the last call that a reader of the run should know."""

    def close(self) -> None:
        """Give processes and memory back."""


def members_of(phase: Phase, cohort: Sequence[int], clients: int) -> Sequence[int]:
    """Client numbers of a phase, ascending, so that arithmetic does not depend on the order of the draw."""
    if phase.cohort is Cohort.ROUND:
        return sorted(cohort)
    if phase.cohort is Cohort.ALL:
        return range(clients)
    return [PSEUDO_CLIENT]
