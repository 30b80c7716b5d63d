"""Two clients with quadratic losses: the common optimum is known, and so is where FedAvg stops short of it.

Client k has the loss h_k/2 · (w − w_k)² with curvature h_k = mean(x²). One gradient step a round on the whole data is
gradient descent on the mean loss, so every method ends at Σ h_k w_k / Σ h_k. With K steps a client moves the fraction
1 − (1 − η h_k)^K of the way to its own optimum; FedAvg then settles where these moves cancel, off the optimum.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fewfed.conformance.property import Broken
from fewfed.conformance.reference import Subject
from fewfed.data.examples import Examples
from fewfed.data.variation import NONE
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.errors import ConfigError
from fewfed.method import Method
from fewfed.network import Network
from fewfed.phase import Clock
from fewfed.plan import Plan
from fewfed.tasks.regression import Regression
from fewfed.training import Training

CURVATURES = (0.5, 2.0)
OPTIMA = (-1.0, 3.0)
RATE = 0.05
STEPS = 20
ROUNDS = 500
CALM = 25
"""Rounds in a row that must agree before a run counts as settled."""
TOLERANCE = 0.02 * (OPTIMA[1] - OPTIMA[0])
"""Far less than the way from the optimum to FedAvg's fixed point; a perturbed gradient has a bias of its own."""


class Quadratics:
    """Clients whose rows all lie on a line through the origin: x = ±√h, y = w·x."""

    classes = 0
    shape = (1,)
    most_rows = None
    test_groups: Mapping[str, Tensor] = {}
    validation_groups: Mapping[str, Tensor] = {}
    client_groups: Sequence[str] = ()
    variation = NONE

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes
        self.test = self.examples(0)
        self.validation = self.test.rows(torch.arange(0))

    def __len__(self) -> int:
        return len(self._sizes)

    def size(self, client: int) -> int:
        return self._sizes[client]

    def examples(self, client: int) -> Examples:
        sign = 1 - 2 * (torch.arange(self._sizes[client]) % 2)
        x = sign.float().unsqueeze(1) * CURVATURES[client] ** 0.5
        return Examples(x, OPTIMA[client] * x.squeeze(1))

    def counts(self, client: int) -> Tensor:  # noqa: ARG002
        return torch.zeros(0)

    def union(self) -> Examples:
        return self.examples(0).join(self.examples(1))

    def fresh_noise(self, client: int) -> float:  # noqa: ARG002
        return 0.0


def quadratic_job(method: Method, steps: int, sizes: Sequence[int] = (10, 10)) -> Job:
    """One step an epoch: a batch holds everything a client can have."""
    line = nn.Linear(1, 1, bias=False)
    line.weight.data.fill_(0.5)
    training = Training(optimizer="sgd", lr=RATE, lr_decay=0.0, epochs=steps, batch=1000)
    return Job(method, Network("line", {"line": line}), Regression(), Quadratics(sizes), training, Plan(0, 1000))


def expected(weights: Sequence[float]) -> float:
    return sum(w * o for w, o in zip(weights, OPTIMA, strict=True)) / sum(weights)


OPTIMUM = expected(CURVATURES)


def fedavg_fixed_point(steps: int, sizes: Sequence[int] = (1, 1)) -> float:
    return expected([n * (1 - (1 - RATE * h) ** steps) for n, h in zip(sizes, CURVATURES, strict=True)])


class _Settled(Exception):
    """Not an error: nothing more will happen."""


@dataclass
class Walk:
    """The weight after every round, until it has stayed within the tolerance of the goal for a while."""

    goal: float
    tolerance: float
    weights: list[float] = field(default_factory=list)

    def after_round(self, view: RoundView) -> None:
        model = view.job.method.predictor(view.server, {})
        self.weights.append(float(model["params"]["line.weight"]))
        if self.arrived:
            raise _Settled

    @property
    def arrived(self) -> bool:
        latest = self.weights[-CALM:]
        return len(latest) == CALM and all(abs(weight - self.goal) < self.tolerance for weight in latest)


def walk(job: Job, goal: float, tolerance: float = TOLERANCE, rounds: int = ROUNDS) -> Walk:
    walked = Walk(goal, tolerance)
    with contextlib.suppress(_Settled):
        run_rounds(job, Sequential(job), [walked], rounds=rounds, cohort=2)
    return walked


def does_not_fit(method: Method) -> str:
    """Why a method cannot be tried on a line: it does not learn one model of real targets with a single layer."""
    if method.needs_classes:
        return "it needs classes"
    if method.personal_model:
        return "each client has a model of its own"
    try:
        method.check(quadratic_job(method, 1).setup)
    except ConfigError as error:
        return str(error)
    return ""


def fewest_steps(method: Method) -> int:
    """One, or two for a method that hands a model on in the middle of a round."""
    try:
        method.phases(Clock(0, ROUNDS, 1))
    except ConfigError:
        return 2
    return 1


def aims_at_the_optimum(subject: Subject) -> str:
    """One local step a round leads to the common optimum; a method with another aim stays between the clients."""
    method = subject.method
    if why := does_not_fit(method):
        return why
    if method.another_aim and any(one.each != "row" for one in method.mechanisms(Clock(0, ROUNDS, 1))):
        return method.another_aim  # Noise leads anywhere.
    if method.another_aim:
        weights = walk(quadratic_job(method, 1), OPTIMUM, rounds=100).weights
        outside = [weight for weight in weights if not OPTIMA[0] < weight < OPTIMA[1]]
        if outside:
            raise Broken(
                f"on two quadratics the model stays between the clients' optima, but it came to {outside[0]:.3g}"
            )
        return method.another_aim
    _arrives(method, fewest_steps(method), "with one local step a round")
    return ""


def corrects_drift_as_it_says(subject: Subject) -> str:
    """A method with `corrects_drift` reaches the optimum with many local steps too."""
    method = subject.method
    if not method.corrects_drift:
        return "it does not say that it corrects drift"
    if why := does_not_fit(method):
        return why
    _arrives(method, STEPS, f"with {STEPS} local steps a round")
    return ""


def _arrives(method: Method, steps: int, how: str) -> None:
    walked = walk(quadratic_job(method, steps), OPTIMUM)
    if not walked.arrived:
        raise Broken(
            f"on two quadratics the model reaches the common optimum {OPTIMUM:.3g} {how}, but it came to "
            f"{walked.weights[-1]:.3g}; a method that by intention minimises something else says so in 'another_aim'"
        )
