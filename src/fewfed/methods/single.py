"""All data in one place."""

from dataclasses import dataclass

from fewfed.methods.fedavg import FedAvg
from fewfed.phase import Clock, Cohort, Phase


@dataclass(frozen=True)
class Single(FedAvg):
    """No federation: one model trained on the union of all clients' rows, E epochs a round. The upper reference."""

    name = "single"
    family = "reference"
    paper = "none: the upper reference (SEM's SingleSet)"
    steps_differ = "a round is E epochs over every client's rows, not over one client's"
    neutral = None

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        return (Phase("train", self, clock.epochs, cohort=Cohort.UNION),)
