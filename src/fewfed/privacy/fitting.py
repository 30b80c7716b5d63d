"""Networks that an attacker trains, by the one loop: a federation of one client that is the attacker itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.executor import Executor
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job
from fewfed.engine.loop import RoundView, run_rounds
from fewfed.engine.optimizer import LocalOptimizer
from fewfed.engine.threads import one_thread
from fewfed.method import Method
from fewfed.network import Network
from fewfed.plan import Plan
from fewfed.task import Score, Task
from fewfed.tasks.regression import Regression
from fewfed.training import Optimizer, Training
from fewfed.tree import Tree

OptimizerName = Literal["sgd", "adam", "adamw"]
_CHECKS = 8
"""How often a network is looked at on rows it does not train on, where there are such."""
_DECAYED = 0.1
"""What is left of the learning rate in the last of these parts."""
_AT_ONCE = 1000
_PART_BYTES = 1 << 30
"""Most bytes of batches that lie on a GPU at the same time."""


@dataclass(frozen=True)
class Rebuilding(Regression):
    """The task of a decoder: labels are inputs, flat, and the loss is the mean squared error."""

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        return (output - y).square().mean()

    def score(self, output: Tensor, y: Tensor) -> Score:
        error = (output - y).double().square().flatten(1).mean(1)
        return Score(torch.zeros(1, dtype=torch.long), torch.tensor([len(y)]), float(error.sum()))


def fit(
    net: Network,
    rows: Examples,
    task: Task,
    *,
    epochs: int,
    batch: int,
    lr: float,
    optimizer: OptimizerName = "adam",
    weight_decay: float = 0.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    held: Examples | None = None,
    tell: Callable[[str], None] | None = None,
) -> Tree:
    """The model of `net` after training on `rows`, on the GPU where `device` is one.

    `held`: rows that it does not train on. The model that is best on them is returned, of those after each eighth of
    the epochs (or a smaller part, where a GPU could not hold its batches), and that before the first; the learning rate
    falls meanwhile. Without any it is the last one.
    """
    parts = _parts(rows, epochs, held is not None, torch.device(device))
    training = Training(
        epochs=-(-epochs // parts),
        batch=min(batch, len(rows)),
        lr=lr,
        optimizer=optimizer,
        weight_decay=weight_decay,
        reset="never" if parts > 1 else "round",
        lr_decay=1 - _DECAYED ** (1 / max(1, parts - 1)) if held is not None and parts > 1 else 0.0,
    )
    # The executor of a GPU takes rows from the host, and scores there.
    rows, held = rows.to("cpu"), None if held is None else held.to("cpu")
    checked = rows.rows(torch.arange(min(1, len(rows)))) if held is None else held
    federation = GeneratedFederation(1, lambda _: rows, checked, classes=0)
    plan = Plan(seed, training.batch, training.batch_rule, training.sampling)
    job = Job(Method(), net, task, federation, training, plan)
    executor = _executor(job, torch.device(device))
    watch = _Watch(executor, None if held is None else _Best.of(executor, net.model()), tell)
    try:
        last = run_rounds(job, executor, [watch], rounds=parts, cohort=1)["model"]
    finally:
        executor.close()
    chosen: Tree = last if watch.best is None else watch.best.model
    return tree.to(chosen, device)


def answers(net: Network, model: Tree, x: Tensor) -> Tensor:
    """What a network says of some rows, in eval mode, on their device."""
    model = tree.to(model, x.device)
    with torch.no_grad(), one_thread():
        return torch.cat([net.apply(model, part, train=False) for part in torch.split(x, _AT_ONCE)])


def descend(
    loss: Callable[[Tensor], Tensor], start: Tensor, *, steps: int, lr: float, settings: Optimizer | None = None
) -> Tensor:
    """Where so many steps of Adam on a function of one array lead: for what is looked for, not trained."""
    place = start.detach().clone()
    optimizer = LocalOptimizer(settings or Optimizer(optimizer="adam"), [place])
    with one_thread():
        for number in range(steps):
            point = place.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(point), [point])
            # Falls to a tenth: the first steps find the place, the last ones settle there.
            optimizer.step([gradient], lr * _DECAYED ** (number / max(1, steps - 1)))
    return place


def _parts(rows: Examples, epochs: int, checked: bool, device: torch.device) -> int:
    """In how many parts a network is trained: for checks between them, and because a GPU is handed all batches of a
    part at once."""
    here = epochs * (rows.x.nbytes + rows.y.nbytes) if device.type == "cuda" else 0
    return max(1, min(epochs, max(-(-here // _PART_BYTES), _CHECKS if checked else 1)))


def _executor(job: Job, device: torch.device) -> Executor:
    if device.type != "cuda":
        return Sequential(job)
    from fewfed.engine.executors.cuda.executor import Device
    from fewfed.engine.executors.cuda.options import Options

    return Device(job, None, Options(mode="graphs", compiled="none", layout="plain", device=str(device)))


@dataclass(frozen=True)
class _Best:
    """The model with the least loss on rows that are not trained on."""

    model: Tree
    loss: float

    @classmethod
    def of(cls, executor: Executor, model: Tree) -> _Best:
        model = tree.clone(executor.place(model))
        return cls(model, executor.evaluate([model])[0].mean_loss)


@dataclass
class _Watch:
    executor: Executor
    best: _Best | None
    tell: Callable[[str], None] | None

    def after_round(self, view: RoundView) -> None:
        if self.best is not None:
            found = _Best.of(self.executor, view.server["model"])
            self.best = found if found.loss < self.best.loss else self.best
        if self.tell is not None:
            self.tell(f"{view.clock.round + 1}/{view.clock.rounds}")
