"""Runs to be written anew in tests: a small network of torch's own modules, in double precision, unequal clients, and
the cohorts, batches and draws of a run's plan. Nothing here or in the tests around it uses a loss of fewfed."""

from __future__ import annotations

import copy
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, one_hot

from fewfed.engine.job import Job
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.phase import Clock
from fewfed.plan import Random
from fewfed.tree import Tree
from support import EXACT, Recorder, digits_federation, in_double, job_of, run

SIZES = (14, 9, 20, 6, 12, 17, 8, 11)
CLASSES, WIDTH = 10, 24

State = dict[str, Tensor]


def fresh() -> nn.Sequential:
    """Three stages, cut after the first. No bias before BatchNorm, whose true gradient is zero: Adam would blow its
    rounding errors up to full steps."""
    torch.manual_seed(5)
    stages: dict[str, nn.Module] = {
        "first": nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
        "second": nn.Sequential(
            nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()
        ),
        "head": nn.Linear(WIDTH, CLASSES),
    }
    return nn.Sequential(OrderedDict(stages)).double()


def body(module: Any, x: Tensor) -> Tensor:
    """Penultimate features."""
    found: Tensor = module.second(module.first(x))
    return found


def state_of(module: nn.Module) -> State:
    return {name: value.clone() for name, value in module.state_dict().items() if "num_batches" not in name}


def loaded(state: State, *, train: bool = True, into: nn.Module | None = None) -> Any:
    module = fresh() if into is None else into
    module.load_state_dict(state, strict=False)
    return module.train(train)


def mean(states: Sequence[State], weights: Sequence[float]) -> State:
    total = sum(weights)
    return {
        name: torch.stack([s[name] * (w / total) for s, w in zip(states, weights, strict=True)]).sum(0)
        for name in states[0]
    }


def gap(model: Tree, state: Mapping[str, Tensor]) -> float:
    """The largest difference; that of something that is no number is none of its business, and fails."""
    flat = {**model["params"], **model["buffers"]}
    gaps = [float((flat[name] - value).abs().max()) for name, value in state.items()]
    assert flat.keys() == state.keys()
    assert all(each == each for each in gaps)
    return max(gaps)


def labels(y: Tensor) -> Tensor:
    return one_hot(y, CLASSES).double()


def soft_entropy(output: Tensor, target: Tensor) -> Tensor:
    return -(target * log_softmax(output, 1)).sum(1).mean()


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) of logits."""
    log_p, log_q = log_softmax(p, 1), log_softmax(q, 1)
    return (log_p.exp() * (log_p - log_q)).sum(1).mean()


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Played:
    """A run of fewfed, and what whoever writes it anew has to know of its plan."""

    def __init__(
        self,
        spec: str,
        values: Mapping[str, Any] | None = None,
        *,
        rounds: int = 3,
        training: Mapping[str, Any] | None = None,
        sizes: Sequence[int] = SIZES,
    ) -> None:
        chosen = choose(spec, values or {})
        local = {**chosen.training, **(training or {})}
        job = in_double(job_of(chosen.method, digits_federation(len(sizes), sizes), training=local, rows_public=True))
        net = Network("mine", dict(copy.deepcopy(fresh()).named_children()), cut="first")
        self.job: Job = dataclasses.replace(job, net=net)
        self.rounds, self.plan = rounds, dataclasses.replace(self.job.plan, dtype=torch.float64)
        self.recorder: Recorder = run(self.job, rounds=rounds, cohort=4)
        assert self.recorder.events == []
        assert not any(view.record.failed for view in self.recorder.views)

    def __len__(self) -> int:
        return len(self.job.federation)

    def rows(self, client: int) -> tuple[Tensor, Tensor]:
        data = self.job.federation.examples(client)
        return data.x, data.y

    def cohort(self, round: int) -> list[int]:
        return sorted(self.plan.cohort(round, len(self), 4))

    def batches(
        self, round: int, client: int, phase: str = "train", epochs: int | None = None, rows: int | None = None
    ) -> list[Tensor]:
        count = len(self.rows(client)[1]) if rows is None else rows
        return self.plan.batches(round, phase, client, count, self.job.training.epochs if epochs is None else epochs)

    def random(self, round: int, client: int, phase: str = "train") -> Random:
        return self.plan.random(round, phase, client)

    def adam(self, module: nn.Module, round: int) -> torch.optim.Adam:
        return torch.optim.Adam(module.parameters(), self.job.training.lr_at(round))

    def server(self, round: int) -> Tree:
        return self.recorder.views[round].server

    def gap(self, round: int, state: State) -> float:
        """Between the model that predicts after a round and one that was written anew."""
        return gap(self.job.method.predictor(self.server(round), {}), state)

    def follow(
        self,
        local: Callable[[Turn], State],
        after: Callable[[int, State], None] | None = None,
        within: float = EXACT,
    ) -> None:
        """Compare every round with the mean, by what clients weigh, of what they make of a common model."""
        state = state_of(fresh())
        for round in range(self.rounds):
            turns = [Turn(self, round, client, state) for client in self.cohort(round)]
            state = mean([local(turn) for turn in turns], [turn.weight for turn in turns])
            assert self.gap(round, state) < within
            if after is not None:
                after(round, state)


@dataclass(frozen=True)
class Turn:
    """One client's in one round: where it starts, its rows, and what the plan has for it."""

    played: Played
    round: int
    client: int
    state: State

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        return self.played.rows(self.client)

    @property
    def weight(self) -> float:
        return 1.0 if self.played.job.training.weighting == "uniform" else float(len(self.rows[1]))

    @property
    def random(self) -> Random:
        """From its beginning, each time."""
        return self.played.random(self.round, self.client)

    def batches(self, rows: int | None = None) -> list[Tensor]:
        phases = self.played.job.method.phases(Clock(self.round, self.played.rounds, self.played.job.training.epochs))
        epochs = next(phase.epochs for phase in phases if phase.name == "train")
        return self.played.batches(self.round, self.client, epochs=epochs, rows=rows)

    def adam(self, module: nn.Module) -> torch.optim.Adam:
        return self.played.adam(module, self.round)
