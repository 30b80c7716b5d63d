"""Prediction by an average of models over rounds."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from fewfed.errors import ConfigError
from fewfed.method import Combined, Method, Setup
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.parts.server_optim import weighted_mean
from fewfed.phase import Clock, Phase
from fewfed.settings import setting
from fewfed.tree import Tree
from fewfed.wrapper import Around, Wrapper

UNAVERAGED = "unaveraged"
"""What the method's own model is called that is scored beside the average."""


@dataclass(frozen=True)
class Averaged(Wrapper):
    """The model that predicts is a moving average of the models that any method has after its rounds.

    After round t it is Σ decay^i · w_(t−i) / Σ decay^i over all rounds so far, so that the first model counts as much
    as its age says and the one before training not at all; with `last` = n the plain mean of the last n models. The
    statistics of BatchNorm are averaged like weights. The method itself goes on from its own model, and nothing more
    leaves a client or reaches one: the price is one more model at the server, or n − 1, and a model that lags behind
    by decay/(1 − decay) rounds. What is averaged is what would predict: a method that calibrates its last model goes
    outside, as in ccvr(averaged(fedavg)).
    """

    name = "averaged"
    family = "average"
    paper = "Polyak & Juditsky, Acceleration of Stochastic Approximation by Averaging, SIAM J. Control Optim. 1992"
    neutral = MappingProxyType({"decay": 0.0})
    keeps_bounds = True

    inner: Method = field(default_factory=FedAvg)
    decay: float = setting(
        0.8, "what the model of a round counts less than that of the next; 0 = no average", ge=0, lt=1
    )
    last: int = setting(0, "instead, the plain mean of the models of so many last rounds; 0 = by decay", ge=0)

    def check(self, setup: Setup) -> None:
        super().check(setup)
        if self.inner.personal_model:
            raise ConfigError(
                f"method 'averaged' averages one common model over rounds, but '{self.inner.label}' keeps models at "
                "its clients: wrap a method with one common model"
            )

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        first, *others = self.inner.phases(clock)
        begins = super().around(first) if clock.first else dataclasses.replace(first, does=Past(self, first))
        return (begins, *map(self.around, others))

    def own_init(self, setup: Setup) -> Tree:
        return {"models": {}, "weight": torch.tensor(0.0, dtype=torch.float64)}

    def predictor(self, server: Tree, state: Tree) -> Tree:
        model, own = super().predictor(server, state), server["own"]
        before = [*own["models"].values()]
        if not (self.decay or self.last):
            return model
        share = 1.0 if self.last else self.decay * float(own["weight"])
        return weighted_mean([*before, model], [*[share] * len(before), 1.0])

    @property
    def besides(self) -> Mapping[str, Method]:
        return {UNAVERAGED: dataclasses.replace(self, decay=0.0, last=0)} if self.decay or self.last else {}

    def remembered(self, server: Tree) -> Tree:
        """What the server keeps of all rounds so far when the next one begins."""
        own = server["own"]
        if not self.last:
            return {"models": {"0": self.predictor(server, {})}, "weight": self.decay * own["weight"] + 1}
        models = [super().predictor(server, {}), *own["models"].values()][: self.last - 1]
        return {**own, "models": {str(age): model for age, model in enumerate(models)}}


class Past(Around[Averaged]):
    """The first phase of a round: the model that it is about to change belongs to the past."""

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        return {**super().absorb(server, combined), "own": self.wrapper.remembered(server)}
