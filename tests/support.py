"""Helpers for tests: a tiny federation, a context to call a method's functions with, and short runs in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from fewfed import networks, tree
from fewfed.data.examples import Examples
from fewfed.data.federation import Federation, GeneratedFederation
from fewfed.engine.executor import Briefing, Executor
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.homes import SimulatedHomes
from fewfed.engine.job import Job
from fewfed.engine.loop import Observer, RoundView, run_rounds
from fewfed.engine.schema import Schemas
from fewfed.engine.step import minimised
from fewfed.method import Batch, Context, Method
from fewfed.methods.registry import choose
from fewfed.network import Network
from fewfed.phase import Clock, Phase
from fewfed.plan import Plan
from fewfed.task import Task
from fewfed.tasks.classification import Classification
from fewfed.training import Training
from fewfed.tree import Tree


@cache
def digits() -> tuple[Examples, Examples]:
    """1400 training and 397 test rows of 8x8 digits."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = torch.tensor(raw.data, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(raw.target, dtype=torch.long)
    return Examples(x[:1400], y[:1400]), Examples(x[1400:], y[1400:])


def digits_federation(clients: int = 10, rows: int | Sequence[int] = 12) -> GeneratedFederation:
    """Clients with rows of two or three classes each; `rows` is one size for all or one a client."""
    train, test = digits()
    sizes = [rows] * clients if isinstance(rows, int) else list(rows)

    def make(client: int) -> Examples:
        held = torch.isin(train.y, torch.tensor([client % 10, (3 * client + 1) % 10, (7 * client + 2) % 10]))
        mine = held.nonzero().flatten().roll(-5 * client)[: sizes[client]]
        return train.rows(mine)

    return GeneratedFederation(clients, make, test, classes=10)


def digits_network(seed: int = 3) -> Network:
    """Two convolutions with BatchNorm, cut after the first."""
    return networks.build("digits-cnn", (1, 8, 8), 10, seed)


EXACT = 1e-9
"""How far apart executors may be in double precision. In single precision a ReLU or a tiny BatchNorm batch magnifies
rounding without bound, so agreement cannot be told from its absence there."""


def in_double(job: Job) -> Job:
    """The same job in double precision: what is left of a difference between two executors there is no rounding."""
    whole = job.federation
    test = Examples(whole.test.x.double(), whole.test.y)

    def make(client: int) -> Examples:
        own = whole.examples(client)
        return Examples(own.x.double(), own.y)

    federation = GeneratedFederation(len(whole), make, test, whole.classes)
    return dataclasses.replace(job, net=job.net.to(torch.float64), federation=federation)


def linear_network(weight: Any, *, dtype: torch.dtype = torch.float64) -> Network:
    """One stage `head` that multiplies by the given matrix, without bias."""
    values = torch.tensor(weight, dtype=dtype)
    layer = nn.Linear(values.shape[1], values.shape[0], bias=False, dtype=dtype)
    layer.weight.data.copy_(values)
    return Network("linear", {"head": layer})


def context(
    net: Network,
    data: Examples,
    shared: Tree | None = None,
    *,
    phase: Phase | None = None,
    round: int = 0,
    rounds: int = 10,
    client: int = 0,
    task: Task | None = None,
    plan: Plan | None = None,
    personal: Tree | None = None,
    state: Tree | None = None,
    lr: float = 1e-3,
    steps: int = 1,
) -> Context:
    """What one client of a classification run looks at; `shared` is the network's own model unless given."""
    task = task or Classification(10)
    return Context(
        net=net,
        task=task,
        plan=plan or Plan(0, 8),
        phase=phase or Phase("train", Method(), 1),
        clock=Clock(round, rounds, 1),
        client=client,
        lr=lr,
        shape=tuple(data.x.shape[1:]),
        data=data,
        counts=torch.bincount(data.y, minlength=task.classes) if task.classes else torch.zeros(0),
        shared={"model": net.model()} if shared is None else shared,
        personal=personal or {},
        state=state or {},
        steps=steps,
    )


def same(a: Any, b: Any) -> bool:
    """Whether two trees have the same names and, bit for bit, the same tensors."""
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)


def trainable(model: Tree) -> Tree:
    """A copy of a model whose parameters ask for gradients."""
    copy = tree.clone(model)
    for leaf in copy["params"].values():
        leaf.requires_grad_(True)
    return copy


def gradients(loss: Tensor, work: Tree) -> dict[str, Tensor]:
    """The gradient of a loss in every parameter; zeros where it does not depend on one."""
    params = work["params"]
    grads = torch.autograd.grad(
        loss, list(params.values()), allow_unused=True, materialize_grads=True, retain_graph=True
    )
    return dict(zip(params, grads, strict=True))


def total(method: Method, terms: dict[str, Tensor]) -> Tensor:
    """What the engine minimises."""
    return minimised(terms, method.observed)


def batch_of(data: Examples, drawn: Tree | None = None) -> Batch:
    """All rows of some data as one step's batch."""
    return Batch(data.x, data.y, drawn or {})


@dataclass
class Recorder:
    """An observer that keeps every round as it was, and at the end the server's tree."""

    views: list[RoundView] = field(default_factory=list)
    server: Tree = field(default_factory=dict)

    def after_round(self, view: RoundView) -> None:
        self.views.append(view)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [view.metrics for view in self.views]

    @property
    def events(self) -> list[str]:
        """What was said of the run, as sentences."""
        return [str(event) for view in self.views for event in view.record.events]


def traffic(up: int, down: int, every_time: int | None = None) -> dict[str, int]:
    """What a round's record says of bytes; without `every_time`, nothing was left out because somebody held it."""
    return {"up": up, "down": down, "down_if_sent_every_time": down if every_time is None else every_time}


def gap(left: Tree, right: Tree) -> float:
    """The largest difference of two trees with the same names."""
    ours, theirs = dict(tree.leaves(left)), dict(tree.leaves(right))
    assert ours.keys() == theirs.keys()
    gaps = (float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours if ours[name].numel())
    return max(gaps, default=0.0)


def states(executor: Executor | SimulatedHomes, clients: int) -> dict[int, Tree]:
    """What every client that took part remembers, its optimiser's moments too."""
    homes = executor if isinstance(executor, SimulatedHomes) else executor.homes
    assert isinstance(homes, SimulatedHomes)
    found = {client: homes.kept(client) for client in range(clients)}
    return {client: tree.clone(state) for client, state in found.items() if state is not None}


def briefing_of(job: Job, clock: Clock, shared: Tree | None = None) -> Briefing:
    """What the members of a job's first phase are told, by a server that has just begun unless `shared` is given."""
    phase, server = job.method.phases(clock)[0], job.method.server_init(job.setup)
    shared = phase.does.broadcast(server) if shared is None else shared
    return Briefing(phase, clock, shared, Schemas(job).of(phase, clock, shared, phase.does.personal(server, 0), 0))


def job_of(
    method: str | Method,
    federation: Federation | None = None,
    *,
    net: Network | None = None,
    training: Mapping[str, Any] | None = None,
    task: Task | None = None,
    seed: int = 0,
) -> Job:
    """A small job: a method by name (its preset's training applies) or as an object, two epochs in batches of 8."""
    federation = federation or digits_federation()
    chosen: Mapping[str, Any] = {}
    if isinstance(method, str):
        choice = choose(method)
        method, chosen = choice.method, choice.training
    local = Training(**{"epochs": 2, "batch": 8, **chosen, **(training or {})})
    plan = Plan(seed, local.batch, local.batch_rule, local.sampling)
    return Job(method, net or digits_network(), task or Classification(10), federation, local, plan)


def run(
    job: Job,
    *,
    rounds: int = 2,
    cohort: int = 3,
    observers: Sequence[Observer] = (),
    executor: Executor | None = None,
    homes: SimulatedHomes | None = None,
    server: Tree | None = None,
    start: int = 0,
) -> Recorder:
    """Run a job in this process (or on the executor given) and return what happened."""
    recorder = Recorder()
    recorder.server = run_rounds(
        job,
        executor or Sequential(job, homes),
        [*observers, recorder],
        rounds=rounds,
        cohort=cohort,
        server=server,
        start=start,
    )
    return recorder
