"""Reports of a stack: whatever a method's `end` looks at, each client reports what it would alone."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fewfed import tree
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.method import Context, Report
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.registry import choose
from fewfed.phase import MODEL, Clock, Combine, Phase, Role, Upload
from fewfed.tree import Tree
from support import EXACT, digits_federation, in_double, job_of, run


@dataclass(frozen=True)
class Extra(FedAvg):
    """Uploads something beside the model."""

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        uploads = {**MODEL, "extra": Upload(Combine.SUM, Role.STATISTICS)}
        return (Phase("train", self, clock.epochs, uploads),)

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        return Report({**report.upload, "extra": self.extra(work, ctx)}, {}, self.weight(work, ctx))

    def extra(self, work: Tree, ctx: Context) -> torch.Tensor:
        return torch.ones(1, dtype=torch.double)

    def weight(self, work: Tree, ctx: Context) -> float:
        return float(ctx.size)


class OfItsCounts(Extra):
    def extra(self, work: Tree, ctx: Context) -> torch.Tensor:
        return ctx.counts.double() ** 2


class OfItsRows(Extra):
    def extra(self, work: Tree, ctx: Context) -> torch.Tensor:
        return ctx.data.x.double().sum((0, 1))


class OfItsNumber(Extra):
    def extra(self, work: Tree, ctx: Context) -> torch.Tensor:
        return torch.tensor([float(ctx.client)], dtype=torch.double)


class OfItsName(Extra):
    def extra(self, work: Tree, ctx: Context) -> torch.Tensor:
        return torch.tensor([float(f"{ctx.client}")], dtype=torch.double)


class WeighedByItsModel(Extra):
    def weight(self, work: Tree, ctx: Context) -> float:
        return float(work["params"]["head.bias"].abs().sum())


def total(method: FedAvg, sizes: tuple[int, ...], plan: str | None) -> Tree:
    training = {"epochs": 1, "optimizer": "sgd", "lr": 0.02}
    job = in_double(job_of(method, digits_federation(8, sizes), training=training))
    executor = Device(job, options=Options(device="cpu", mode="stacked", stack=4)) if plan else None
    return run(job, rounds=1, cohort=7, executor=executor).server


@pytest.mark.parametrize("sizes", [(16,) * 8, (16, 20, 16, 9, 24, 16, 16, 12)], ids=["alike", "uneven"])
@pytest.mark.parametrize("method", [OfItsCounts(), OfItsRows(), OfItsNumber(), OfItsName(), WeighedByItsModel()])
def test_a_stack_reports_what_its_clients_report_alone(method: FedAvg, sizes: tuple[int, ...]) -> None:
    found, expected = total(method, sizes, "stacked"), total(method, sizes, None)
    ours, theirs = dict(tree.leaves(found)), dict(tree.leaves(expected))
    assert ours.keys() == theirs.keys()
    for path, value in theirs.items():
        assert torch.allclose(ours[path].double(), value.double(), rtol=0, atol=EXACT), path


@pytest.mark.parametrize("name", ["fedavg", "fedfa", "scaffold", "fedntd", "flea", "fedprox"])
def test_common_methods_are_asked_once_a_stack(name: str) -> None:
    chosen = choose(name)
    job = job_of(chosen.method, digits_federation(8, 16), training=chosen.training)
    executor = Device(job, options=Options(device="cpu", mode="stacked", stack=4))
    run(job, rounds=1, cohort=8, executor=executor)
    assert executor._reports._apart == set()
