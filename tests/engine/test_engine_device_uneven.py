"""Clients whose batches or draws differ in size: a step is recorded for every size, and nothing else changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from fewfed.engine.events import Impossible
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.feed import Feed
from fewfed.engine.executors.cuda.lane import Lane
from fewfed.engine.executors.cuda.options import Options
from fewfed.engine.executors.cuda.ready import ReadyTurn
from fewfed.method import Batch, Context
from fewfed.methods.fedavg import FedAvg
from fewfed.plan import Plan, Random
from fewfed.tree import Tree
from support import EXACT, digits_federation, gap, in_double, job_of, run

SIZES = (5, 8, 12, 16, 19, 20, 6, 24, 36, 11)
"""Batches of 8: shorter, equal, longer, and multiples of it."""


@dataclass(frozen=True)
class Growing(FedAvg):
    """Draws of several sizes for batches of one."""

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return {"lam": random.uniform(1 + len(random.loader(5, 3)))}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        lam = batch.drawn["lam"]
        terms = super().loss(work, ctx, batch)
        return {"task": terms["task"] * (1 + lam.sum() / len(lam)), **({"few": lam.sum()} if len(lam) == 3 else {})}


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "fedavg, short batches kept": ("fedavg", {"batch_rule": "partial"}),
    "scaffold, short batches kept": ("scaffold", {"batch_rule": "partial", "optimizer": "sgd", "lr": 0.02}),
    "flea, released loader": ("flea", {"batch_rule": "released", "optimizer": "sgd"}),
    "flea as released": ("flea:official", {"optimizer": "sgd"}),
    "draws that differ": (Growing(), {}),
}


@pytest.mark.parametrize("mode", ["graphs", "auto"])
@pytest.mark.parametrize("case", CASES)
def test_every_size_gives_the_same_numbers(case: str, mode: str) -> None:
    method, training = CASES[case]
    job = in_double(job_of(method, digits_federation(10, SIZES), training={"epochs": 2, "batch": 8, **training}))
    device = Device(job, options=Options(device="cpu", mode=mode, streams=3))  # type: ignore[arg-type]
    found, expected = run(job, rounds=3, cohort=10, executor=device), run(job, rounds=3, cohort=10)
    assert gap(found.server, expected.server) < EXACT
    for ours, theirs in zip(found.views, expected.views, strict=True):
        assert not [event for event in ours.record.events if isinstance(event, Impossible) and event.phase]
        left, right = ours.record.phases["train"], theirs.record.phases["train"]
        assert left.steps == right.steps
        assert left.terms.keys() == right.terms.keys()
        assert all(left.terms[name] == pytest.approx(right.terms[name], abs=1e-7) for name in right.terms)


def test_a_size_is_recorded_once_a_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: Counter[tuple[int, object]] = Counter()
    record = Lane._record

    def counting(lane: Lane, feed: Feed, turns: Any, padded: bool) -> None:
        recorded[id(lane), feed._x.shape] += 1
        record(lane, feed, turns, padded)

    monkeypatch.setattr(Lane, "_record", counting)
    job = job_of("fedavg", digits_federation(10, SIZES), training={"epochs": 2, "batch": 8, "batch_rule": "partial"})
    run(job, rounds=4, cohort=10, executor=Device(job, options=Options(device="cpu", mode="graphs", streams=1)))
    assert set(recorded.values()) == {1}
    assert {shape[1] for _, shape in recorded} == {5, 8, 4, 3, 6}  # type: ignore[index]


def lanes_made(rule: str, rounds: int, monkeypatch: pytest.MonkeyPatch) -> int:
    made = 0
    begin = Lane.__init__

    def counting(lane: Lane, *arguments: Any, **given: Any) -> None:
        nonlocal made
        made += 1
        begin(lane, *arguments, **given)

    job = job_of("fedavg", digits_federation(10, SIZES), training={"epochs": 2, "batch": 8, "batch_rule": rule})
    device = Device(job, options=Options(device="cpu", mode="graphs", streams=3))
    with monkeypatch.context() as patch:
        patch.setattr(Lane, "__init__", counting)
        run(job, rounds=rounds, cohort=10, executor=device)
    return made


@pytest.mark.parametrize("rule", ["fill", "partial", "released"])
def test_lanes_stay_for_later_rounds(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that is not held is freed while a GPU still works on it. Turns of several lengths ask for several."""
    assert lanes_made(rule, 4, monkeypatch) == lanes_made(rule, 6, monkeypatch)


def test_steps_are_taken_in_the_order_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, ...]] = []
    run_lane = Lane.run

    def watching(lane: Lane, turns: list[ReadyTurn]) -> None:
        seen.extend(tuple(len(turn.parts[part].rows[0]) for part in turn.order) for turn in turns)
        run_lane(lane, turns)

    monkeypatch.setattr(Lane, "run", watching)
    training = {"epochs": 2, "batch": 8, "batch_rule": "partial"}
    job = job_of("fedavg", digits_federation(1, (19,)), training=training)
    run(job, rounds=1, cohort=1, executor=Device(job, options=Options(device="cpu", mode="graphs")))
    assert seen == [(8, 8, 3, 8, 8, 3)]


def test_stacks_refuse_batches_of_several_sizes() -> None:
    job = job_of("fedavg", digits_federation(10, SIZES), training={"epochs": 1, "batch": 8, "batch_rule": "partial"})
    found = run(job, rounds=1, cohort=10, executor=Device(job, options=Options(device="cpu", mode="stacked")))
    (event,) = found.views[0].record.events
    assert "its batches differ in size" in str(event)


@pytest.mark.parametrize("rule", ["fill", "partial", "released"])
def test_even_batches_are_those_of_one_size(rule: Any) -> None:
    for count in range(1, 40):
        plan = Plan(0, 8, rule)
        sizes = {len(rows) for rows in plan.batches(0, "train", 0, count, 2)}
        assert plan.has_even_batches(count) == (len(sizes) == 1)
