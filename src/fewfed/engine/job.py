"""What stays the same over a run, and who takes part in a phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.data.federation import Federation
from fewfed.engine.adversary import Adversary
from fewfed.engine.gate import Gate
from fewfed.engine.remake import Remake
from fewfed.errors import ConfigError
from fewfed.method import Method, Setup
from fewfed.network import Network
from fewfed.phase import Clock, Cohort, Phase
from fewfed.plan import Plan
from fewfed.task import Task
from fewfed.training import Training

if TYPE_CHECKING:
    from fewfed.engine.robust.defence import Defence

PSEUDO_CLIENT = -1
"""The client number in phases that are run by the server, or on the rows of all clients together."""


@dataclass(frozen=True)
class Job:
    """Everything that stays the same over a run."""

    method: Method
    net: Network
    task: Task
    federation: Federation
    training: Training
    plan: Plan
    rows_public: bool = False
    """Whether everybody may see the clients' rows."""
    gates: tuple[Gate, ...] = ()
    """What watches over what leaves clients: a budget, a release policy."""
    defence: Defence | None = None
    """What the server does against clients that may not be honest; None: it combines as phases declare."""
    adversary: Adversary | None = None
    """Who attacks, where some clients of a simulation do."""
    remake: Remake | None = field(default=None, compare=False)
    """How processes that are not forked from this one make the same job; None where nobody has said how."""

    @property
    def setup(self) -> Setup:
        plan = dataclasses.replace(self.plan, dtype=self.net.dtype)
        shape = tuple(self.federation.shape)
        return Setup(self.net, self.task, plan, len(self.federation), shape, self.training, self.rows_public)

    def check(self) -> None:
        """Raise `ConfigError` where the method does not fit the task, the network or the training."""
        if self.method.needs_classes and not self.task.classes:
            raise ConfigError(
                f"method '{self.method.label}' needs class labels: expected a classification task, not "
                f"{type(self.task).__name__.lower()}; use a method that does not (such methods mix or count no labels)"
            )
        if self.method.needs_stages:
            self.net.require_stages(f"method '{self.method.label}'")
        if self.method.no_batchnorm and self.net.has_batchnorm:
            raise ConfigError(
                f"method '{self.method.label}' cannot use BatchNorm, which network '{self.net.name}' has: "
                f"{self.method.no_batchnorm}; expected a network without, such as the GroupNorm variant NAME-gn of a "
                "built-in one"
            )
        self.method.check(self.setup)
        if self.method.needs_rows_apart:
            from fewfed.engine.rows_apart import refuse_mixed_rows  # It runs turns, which are made from jobs.

            refuse_mixed_rows(self)

    def rows_of(self, client: int) -> Examples:
        """The rows of a client as it uses them: its own, unless it is an attacker that changes them."""
        data = self.federation.examples(client)
        if self.adversary is None or client not in self.adversary.clients:
            return data
        return self.adversary.rows(data, self.task.outputs)

    def counts_of(self, client: int) -> Tensor:
        """How many of them are of each class."""
        if self.adversary is None or client not in self.adversary.clients or not self.task.classes:
            return self.federation.counts(client)
        return torch.bincount(self.rows_of(client).y, minlength=self.task.classes)

    def training_of(self, phase: Phase) -> Training:
        """The run's training with what a phase sets for itself."""
        return dataclasses.replace(self.training, **phase.training) if phase.training else self.training

    def keeps_moments(self, phase: Phase) -> bool:
        """Whether the optimiser of a client goes on in a phase where it stopped in the client's last turn."""
        return phase.epochs > 0 and self.training_of(phase).reset == "never"

    def phase(self, name: str, clock: Clock) -> Phase:
        """The phase of that name in a round."""
        return next(phase for phase in self.method.phases(clock) if phase.name == name)


def members_of(phase: Phase, cohort: Sequence[int], clients: int) -> Sequence[int]:
    """Client numbers of a phase, ascending, so that arithmetic does not depend on the order of the draw."""
    if phase.cohort is Cohort.ROUND:
        return sorted(cohort)
    if phase.cohort is Cohort.ALL:
        return range(clients)
    return [PSEUDO_CLIENT]


def is_inside(phase: Phase) -> bool:
    """Whether a phase runs inside the server (or without any federation): nothing crosses the boundary."""
    return phase.cohort in (Cohort.SERVER, Cohort.UNION)
