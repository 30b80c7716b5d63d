"""A method whose loss contains a gradient, against a plain PyTorch loop with the unfused Adam.

The second derivative of a convolution comes back with other strides than its kernel has, and torch's fused Adam on a
CPU does not look at strides.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fewfed import tree
from fewfed.engine.executor import Executor
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.executors.workers import options as workers
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.job import Job
from fewfed.engine.layout import Layout
from fewfed.engine.optimizer import LocalOptimizer
from fewfed.method import Batch, Context
from fewfed.methods.fedavg import FedAvg
from fewfed.network import Network
from fewfed.training import Optimizer
from fewfed.tree import Tree
from support import digits_federation, gap, in_double, job_of, run

SMOOTH = 0.3


@dataclass(frozen=True)
class Smooth(FedAvg):
    """Cross-entropy plus the squared length of its gradient in the inputs."""

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        def own_loss(x: Tensor) -> tuple[Tensor, Tensor]:
            value = ctx.task.loss(ctx.net.apply(work, x), batch.y)
            return value, value

        slope, value = torch.func.grad(own_loss, has_aux=True)(batch.x)
        return {"task": value, "slope": SMOOTH * slope.square().sum()}


def network() -> Network:
    torch.manual_seed(1)
    stages = {
        "conv1": nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh()),
        "conv2": nn.Sequential(nn.Conv2d(6, 5, 3), nn.Tanh(), nn.Flatten()),
        "head": nn.Linear(5 * 4 * 4, 10),
    }
    return Network("smooth", stages)


def smooth_job(optimizer: str) -> Job:
    training = {"optimizer": optimizer, "lr": 0.01, "epochs": 2, "batch": 6, "lr_decay": 0.0}
    return in_double(job_of(Smooth(), digits_federation(4, 12), net=network(), training=training))


def by_hand(job: Job, client: int, optimizer: str) -> Tree:
    """The parameters after one client's training, by an ordinary module, `backward` and `torch.optim`."""
    module = copy.deepcopy(nn.Sequential(*(job.net.module(stage) for stage in job.net.stages)))
    names = list(job.net.model()["params"])
    data = job.federation.examples(client)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer]
    adam = kind(module.parameters(), lr=0.01, fused=False, weight_decay=0.0)
    for rows in job.plan.batches(0, "train", client, len(data), 2):
        x = data.x[rows].clone().requires_grad_()
        loss = cross_entropy(module(x), data.y[rows])
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        adam.zero_grad()
        (loss + SMOOTH * slope.square().sum()).backward()
        adam.step()
    return {name: p.detach().clone() for name, p in zip(names, module.parameters(), strict=True)}


@contextmanager
def executor(kind: str, job: Job) -> Iterator[Executor]:
    name, _, way = kind.partition(" ")
    made: Executor
    if name == "sequential":
        made = Sequential(job)
    elif name == "workers":
        layout: Layout = "channels_last" if way == "last" else "plain"
        made = Workers(job, options=workers.Options(2, stack=4 if way == "stacked" else 1, layout=layout))
    else:
        made = Device(job, options=Options(device="cpu", mode=way, stack=4))  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize(
    "kind", ["sequential", "workers plain", "workers last", "workers stacked", "device graphs", "device stacked"]
)
def test_second_derivatives_are_applied_to_the_weights_they_belong_to(kind: str, optimizer: str) -> None:
    job = smooth_job(optimizer)
    own = [by_hand(job, client, optimizer) for client in range(4)]
    expected = {name: torch.stack([params[name] for params in own]).mean(0) for name in own[0]}
    with executor(kind, job) as made:
        found = run(job, rounds=1, cohort=4, executor=made).server["model"]["params"]
    assert gap(found, expected) < 1e-9
    assert gap(found, job.net.model()["params"]) > 1e-2


def test_gradients_may_lie_in_any_order() -> None:
    """The optimiser alone: transposed, channels last and expanded gradients."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, 3, 3, 3), (5, 7), (6,))
    params = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    grads = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes[:2]]
    odd = [grads[0].transpose(0, 1).contiguous().transpose(0, 1), grads[1].T.contiguous().T]
    odd.append(torch.tensor(0.5, dtype=torch.float64).expand(6))
    assert [g.stride() for g in odd] != [p.stride() for p in params]
    mine = [p.clone() for p in params]
    local = LocalOptimizer(Optimizer("adam"), mine)
    reference = [p.clone().requires_grad_() for p in params]
    adam = torch.optim.Adam(reference, lr=0.1, fused=False)
    for _ in range(3):
        local.step(odd, 0.1)
        for p, g in zip(reference, odd, strict=True):
            p.grad = g.clone()
        adam.step()
    gaps = [float((a - b.detach()).abs().max()) for a, b in zip(mine, reference, strict=True)]
    assert max(gaps) < 1e-12


def test_the_gradient_of_a_gradient_does_come_back_in_another_order() -> None:
    """Else the tests above would show nothing."""
    job = smooth_job("adam")
    work = tree.clone(job.net.model())
    data = job.federation.examples(0)
    for leaf in work["params"].values():
        leaf.requires_grad_()

    def own_loss(x: Tensor) -> Tensor:
        return cross_entropy(job.net.apply(work, x), data.y)

    slope = torch.func.grad(own_loss)(data.x)
    kernel = work["params"]["conv2.0.weight"]
    (second,) = torch.autograd.grad(slope.square().sum(), kernel)
    assert second.stride() != kernel.stride()
