"""Helpers for tests: a tiny federation, a context to call a method's functions with, and short runs in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fewfed import tree
from fewfed.conformance.clients import digits as digits
from fewfed.conformance.clients import digits_federation as digits_federation
from fewfed.conformance.clients import digits_network as digits_network
from fewfed.conformance.clients import plain_network
from fewfed.conformance.double import EXACT as EXACT
from fewfed.conformance.double import gap as gap
from fewfed.conformance.double import in_double as in_double
from fewfed.conformance.playing import states as states
from fewfed.data.examples import Examples
from fewfed.data.federation import Federation
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
    rows_public: bool = False,
) -> Job:
    """A small job: a method by name (its preset's training applies) or as an object, two epochs in batches of 8."""
    federation = federation or digits_federation()
    chosen: Mapping[str, Any] = {}
    if isinstance(method, str):
        choice = choose(method)
        method, chosen = choice.method, choice.training
    local = Training(**{"epochs": 2, "batch": 8, **chosen, **(training or {})})
    plan = Plan(seed, local.batch, local.batch_rule, local.sampling)
    usual = plain_network if method.no_batchnorm else digits_network
    return Job(method, net or usual(), task or Classification(10), federation, local, plan, rows_public)


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
