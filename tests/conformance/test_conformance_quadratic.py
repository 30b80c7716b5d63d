"""Two clients with quadratic losses: the common optimum is known, and so is where FedAvg stops short of it.

Client k has the loss h_k/2 · (w − w_k)² with curvature h_k = mean(x²). One gradient step a round on the whole data is
gradient descent on the mean loss, so every method ends at Σ h_k w_k / Σ h_k. With K steps a client moves the fraction
1 − (1 − η h_k)^K of the way to its own optimum; FedAvg then settles where these moves cancel, off the optimum.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from conformance_cases import every_spec
from torch import Tensor, nn

from fewfed.data.examples import Examples
from fewfed.data.variation import NONE
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.errors import ConfigError
from fewfed.method import Method
from fewfed.methods.registry import choose
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

ELSEWHERE: Mapping[str, str] = {
    "fedfv": "in one dimension opposite updates contradict each other entirely, so it goes where neither is worse",
    "fedharmo": "it gives the inputs of all clients the same amplitudes, and with them the same curvature",
    "fedrobust": "it minimises the loss of distorted inputs",
    "moex": "it mixes the targets of rows whose inputs have opposite signs",
}
"""Methods that by intention do not minimise the mean loss on the rows as they are, and why."""


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

    def counts(self, client: int) -> Tensor:
        return torch.zeros(0)

    def union(self) -> Examples:
        return self.examples(0).join(self.examples(1))

    def fresh_noise(self, client: int) -> float:
        return 0.0


def job_of(method: Method, steps: int, sizes: Sequence[int] = (10, 10)) -> Job:
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
class Path:
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


def path(job: Job, goal: float, tolerance: float = TOLERANCE, rounds: int = ROUNDS) -> Path:
    walked = Path(goal, tolerance)
    with contextlib.suppress(_Settled):
        run_rounds(job, Sequential(job), [walked], rounds=rounds, cohort=2)
    return walked


def global_methods() -> list[str]:
    """Methods that learn one model and take real targets and a network of one layer."""
    return [spec for spec in every_spec() if _takes_a_line(choose(spec).method)]


def _takes_a_line(method: Method) -> bool:
    if method.needs_classes or method.personal_model:
        return False
    try:
        method.check(job_of(method, 1).setup)
    except ConfigError:
        return False
    return True


def aims_elsewhere(spec: str) -> bool:
    return choose(spec).method.name in ELSEWHERE


def fewest_steps(method: Method) -> int:
    """One, or two for a method that hands a model on in the middle of a round."""
    try:
        method.phases(Clock(0, ROUNDS, 1))
    except ConfigError:
        return 2
    return 1


@pytest.mark.parametrize("spec", [spec for spec in global_methods() if not aims_elsewhere(spec)])
def test_one_local_step_reaches_the_common_optimum(spec: str) -> None:
    method = choose(spec).method
    walked = path(job_of(method, fewest_steps(method)), OPTIMUM)
    assert walked.arrived, f"expected {OPTIMUM}, last came {walked.weights[-3:]}"


@pytest.mark.parametrize("spec", [spec for spec in global_methods() if aims_elsewhere(spec)])
def test_methods_with_another_aim_stay_between_the_clients(spec: str) -> None:
    weights = path(job_of(choose(spec).method, steps=1), OPTIMUM, rounds=100).weights
    assert all(OPTIMA[0] < weight < OPTIMA[1] for weight in weights)


@pytest.mark.parametrize("spec", [spec for spec in global_methods() if choose(spec).method.corrects_drift])
def test_methods_that_correct_drift_reach_it_with_many_local_steps(spec: str) -> None:
    walked = path(job_of(choose(spec).method, steps=STEPS), OPTIMUM)
    assert walked.arrived, f"expected {OPTIMUM}, last came {walked.weights[-3:]}"


def test_fedavg_with_many_local_steps_settles_at_its_own_fixed_point() -> None:
    goal = fedavg_fixed_point(STEPS)
    assert abs(goal - OPTIMUM) > 4 * TOLERANCE, "the two ends must be told apart"
    assert path(job_of(choose("fedavg").method, steps=STEPS), goal, tolerance=1e-4).arrived


@pytest.mark.parametrize("sizes", [(10, 10), (30, 10), (2, 18)])
@pytest.mark.parametrize("steps", [1, 5])
def test_fedavg_weights_clients_by_their_samples(sizes: tuple[int, int], steps: int) -> None:
    assert path(job_of(choose("fedavg").method, steps, sizes), fedavg_fixed_point(steps, sizes), tolerance=1e-4).arrived


def test_with_one_step_the_fixed_point_is_the_optimum() -> None:
    assert fedavg_fixed_point(1) == pytest.approx(OPTIMUM)
