"""Draws of whole turns: however they are made and packed, a step gets what drawing it alone gives."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch

from fewfed import tree
from fewfed.engine.executors.cuda import prepare
from fewfed.engine.executors.cuda.drawing import Drawing
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.cuda.packed import Packed
from fewfed.engine.executors.cuda.prepare import Preparation
from fewfed.engine.executors.cuda.watch import CannotCapture
from fewfed.engine.job import Job
from fewfed.engine.turn import Member, context_of
from fewfed.method import Context
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import Clock
from fewfed.plan import Random
from fewfed.tree import Tree
from support import digits_federation, job_of, run

STEPS, ROWS = 5, 4


@dataclass(frozen=True)
class Noisy(FedAvg):
    """Only noise, in several shapes, and something computed of it."""

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        on = random.uniform(1)[0] < 0.5
        return {"inner": {}, "own": {"on": on, "noise": random.normal(2, size), "more": random.uniform(3) * 2}}


@dataclass(frozen=True)
class Peeking(FedAvg):
    """Looks at a drawn number."""

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        first = random.uniform(1)
        return {"x": random.normal(size) if float(first) < 2 else first}


@dataclass(frozen=True)
class Shuffling(FedAvg):
    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return {"order": random.permutation(size), "lam": random.uniform(1)[0], "noise": random.normal(size)}


@dataclass(frozen=True)
class Growing(FedAvg):
    """Draws more each time."""

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return {"row": random.loader(7, size)}


def context(method: FedAvg, client: int) -> tuple[Job, Context]:
    job = job_of(method, digits_federation(6, (20,) * 6), training={"epochs": 1, "batch": ROWS})
    clock = Clock(0, 10, 1)
    (phase,) = method.phases(clock)
    ctx = context_of(job, phase, clock, {"model": job.net.model()}, Member(client))
    return job, ctx.__class__(**{**vars(ctx), "steps": STEPS})


def steps_of(packed: Packed) -> list[Tree]:
    return [packed.places.unpack({kind: m[step] for kind, m in packed.matrices.items()}) for step in range(STEPS)]


@pytest.mark.parametrize("method", [Noisy(), Peeking(), Shuffling()], ids=lambda method: type(method).__name__)
def test_every_turn_draws_what_its_steps_draw_alone(method: FedAvg) -> None:
    drawing = Drawing(pinned=False)
    for client in range(3):  # The first turn is drawn step by step, later ones as the first allows.
        _, ctx = context(method, client)
        alone = ctx.plan.random(0, ctx.phase.name, client)
        expected = [method.draw(alone, ctx, ROWS) for _ in range(STEPS)]
        found = steps_of(drawing.turn(ctx.plan.random(0, ctx.phase.name, client), ctx, ROWS))
        for ours, theirs in zip(found, expected, strict=True):
            assert list(tree.hollows(ours)) == list(tree.hollows(theirs))
            left, right = dict(tree.leaves(ours)), dict(tree.leaves(theirs))
            assert left.keys() == right.keys()
            assert all(torch.equal(left[path], right[path]) for path in left)


def test_draws_of_changing_size_cannot_be_captured() -> None:
    _, ctx = context(Growing(), 0)
    with pytest.raises(CannotCapture, match="differs in size"):
        Drawing(pinned=False).turn(ctx.plan.random(0, "train", 0), ctx, ROWS)


@pytest.mark.parametrize("mode", ["graphs", "stacked"])
def test_noise_made_by_threads_changes_nothing(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    expect = Preparation.expect

    def watched(self: Preparation, *arguments: object) -> None:
        expect(self, *arguments)  # type: ignore[arg-type]
        asked.append(len(self._ahead))

    monkeypatch.setattr(prepare, "_MANY_NORMALS", 1)
    monkeypatch.setattr(prepare, "_threads", lambda device: 2)
    monkeypatch.setattr(Preparation, "expect", watched)
    job = job_of("fedfa", digits_federation(10, (20,) * 10), training={"epochs": 1, "batch": 8, "optimizer": "sgd"})
    executor = Device(job, options=Options(device="cpu", mode=mode, stack=4))  # type: ignore[arg-type]
    found, expected = run(job, rounds=2, cohort=6, executor=executor), run(job, rounds=2, cohort=6)
    assert max(asked) > 1
    ours, theirs = dict(tree.leaves(found.server)), dict(tree.leaves(expected.server))
    assert max(float((ours[path] - theirs[path]).abs().max()) for path in theirs) < 2e-5


@dataclass(frozen=True)
class NoisyByClient(FedAvg):
    """Noise whose size is a client's own."""

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return {"noise": random.normal(size) * (1 + ctx.client)}


@pytest.mark.parametrize(
    ("method", "apart"), [(Noisy(), False), (NoisyByClient(), True), (Peeking(), False)], ids=["noise", "own", "peek"]
)
def test_turns_drawn_together_are_what_each_draws_alone(method: FedAvg, apart: bool) -> None:
    drawing = Drawing(pinned=False)
    contexts = [dataclasses.replace(context(method, client)[1], steps=3 + client) for client in range(3)]
    for _ in range(2):  # The first time shows what a step random.
        fresh = [ctx.plan.random(0, ctx.phase.name, ctx.client) for ctx in contexts]
        found = drawing.turns(fresh, contexts, ROWS)
    assert bool(drawing._apart) == apart
    for ctx, packed in zip(contexts, found, strict=True):
        alone = ctx.plan.random(0, ctx.phase.name, ctx.client)
        for step in range(ctx.steps):
            expected = dict(tree.leaves(method.draw(alone, ctx, ROWS)))
            ours = dict(tree.leaves(packed.places.unpack({kind: m[step] for kind, m in packed.matrices.items()})))
            assert ours.keys() == expected.keys()
            assert all(torch.equal(ours[path], expected[path]) for path in ours)
