"""Rows that are new each time they are trained on: drawn from the plan alone, alike in every executor."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fewfed import tree
from fewfed.conformance.differences import differences
from fewfed.data.examples import Dataset, Examples
from fewfed.data.federation import SplitFederation
from fewfed.data.splits import Split
from fewfed.data.variation import Variation
from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options as DeviceOptions
from fewfed.engine.executors.cuda.ready import ReadyTurn
from fewfed.engine.executors.workers.executor import Workers
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.job import Job
from fewfed.engine.turn import Member, context_of, rows_to_train_on
from fewfed.engine.varied import Rows
from fewfed.method import Batch, Context, Method, Report
from fewfed.methods.fedavg import FedAvg
from fewfed.phase import Clock
from fewfed.tree import Tree
from support import EXACT, digits, gap, job_of, run

TRAINING = {"lr": 0.01, "epochs": 2, "batch": 8, "optimizer": "sgd"}
SIZES = [12, 12, 5, 20]


def federation(double: bool = False, **settings: Any) -> SplitFederation:
    train, test = digits()
    kind = torch.float64 if double else torch.float32
    whole = Dataset("digits", Examples(train.x.to(kind), train.y), Examples(test.x.to(kind), test.y), 10)
    rows = np.split(np.arange(sum(SIZES)) * 7, np.cumsum(SIZES)[:-1])
    return SplitFederation(whole, Split.of("by hand", rows), seed=4, **settings)


def job(method: str | Method = "fedavg", double: bool = False, **settings: Any) -> Job:
    made = job_of(method, federation(double, **settings), training=TRAINING)
    if not double:
        return made
    return dataclasses.replace(made, net=made.net.to(torch.float64))


@dataclass(frozen=True)
class Watching(FedAvg):
    """Notes every batch it trains on, and the rows that are seen beside."""

    name = "watching"
    batches: ClassVar[dict[tuple[int, int], list[Tensor]]] = {}
    seen: ClassVar[dict[tuple[int, int], Tensor]] = {}

    def loss(self, work: Tree, ctx: Context, batch: Batch) -> dict[str, Tensor]:
        self.batches.setdefault((ctx.clock.round, ctx.client), []).append(batch.x.clone())
        return super().loss(work, ctx, batch)

    def end(self, work: Tree, ctx: Context) -> Report:
        self.seen[ctx.clock.round, ctx.client] = ctx.data.x.clone()
        return super().end(work, ctx)


def watched(**settings: Any) -> tuple[Job, dict[tuple[int, int], list[Tensor]], dict[tuple[int, int], Tensor]]:
    """The batches and the rows of every turn of two rounds, all clients in each."""
    Watching.batches.clear()
    Watching.seen.clear()
    made = job(Watching(), **settings)
    run(made, rounds=2, cohort=4)
    return made, dict(Watching.batches), dict(Watching.seen)


def plain(made: Job, round: int, client: int) -> list[Tensor]:
    """The batches as the plan has them, before anything is new about them."""
    data = federation().dataset.train.rows(torch.tensor(federation().split.rows(client)))
    return [data.x[rows] for rows in made.plan.batches(round, "train", client, len(data), 2)]


def test_without_settings_steps_see_the_rows_as_they_are() -> None:
    made, batches, _ = watched()
    for (round, client), found in batches.items():
        expected = plain(made, round, client)
        assert len(found) == len(expected)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_every_use_of_a_row_is_a_flip_of_its_own() -> None:
    made, batches, seen = watched(variation=Variation("horizontal"))
    flips: dict[tuple[int, int], list[bool]] = {}
    for (round, client), found in batches.items():
        for one, other in zip(torch.cat(found), torch.cat(plain(made, round, client)), strict=True):
            mirrored = torch.equal(one, other.flip(-1))
            assert mirrored or torch.equal(one, other)
            flips.setdefault((round, client), []).append(mirrored)
    assert 0.35 < np.mean([flip for each in flips.values() for flip in each]) < 0.65
    assert len({tuple(each) for key, each in flips.items() if key[1] < 2}) == 4, "rounds and clients differ"
    long = [each for (_, client), each in flips.items() if SIZES[client] >= 12]
    epochs = [each[: len(each) // 2] != each[len(each) // 2 :] for each in long]
    assert all(epochs), "epochs differ"
    for (_, client), rows in seen.items():
        assert torch.equal(rows, federation().examples(client).x), "what is no step sees the rows as they are"
    assert all(
        all(torch.equal(a, b) for a, b in zip(batches[key], again, strict=True))
        for key, again in watched(variation=Variation("horizontal"))[1].items()
    )


def test_fresh_noise_has_the_clients_level_and_is_new_each_time() -> None:
    made, batches, seen = watched(noise=0.3, noise_fresh=True)
    added: dict[tuple[int, int], Tensor] = {
        key: torch.cat(found) - torch.cat(plain(made, *key)) for key, found in batches.items()
    }
    for client in range(4):
        noise = torch.cat([added[round, client] for round in (0, 1)])
        assert float(noise.std()) == pytest.approx(0.1 * client, rel=0.1, abs=1e-6)
    last = torch.cat([added[round, 3].flatten(1) for round in (0, 1)])
    correlation = torch.corrcoef(last) - torch.eye(len(last))
    assert float(correlation.abs().max()) < 0.6, "64 pixels each, and no two uses alike"
    for round in (0, 1):
        clean = federation().examples(3).x
        assert float((seen[round, 3] - clean).std()) == pytest.approx(0.3, rel=0.1)
    assert not torch.equal(seen[0, 3], seen[1, 3])


def test_frozen_noise_is_the_same_each_time() -> None:
    made, batches, seen = watched(noise=0.3)
    for (round, client), found in batches.items():
        rows = torch.cat(made.plan.batches(round, "train", client, SIZES[client], 2))
        assert torch.equal(torch.cat(found), made.federation.examples(client).x[rows])
    assert torch.equal(seen[0, 3], seen[1, 3])


def test_all_rows_together_have_the_noise_of_their_clients() -> None:
    made = job("single", noise=0.6, noise_fresh=True)
    assert torch.equal(made.federation.union().x, federation().union().x)
    clock = Clock(0, 2, 2)
    phase = made.method.phases(clock)[0]
    ctx = context_of(made, phase, clock, {"model": made.net.model()}, Member(-1))
    data = rows_to_train_on(made, ctx, {})
    source = Rows(made, ctx, data)
    every = torch.arange(sum(SIZES))
    added = torch.stack([source.batch(every)[0] - data.x for _ in range(60)])
    first = 0
    for client, size in enumerate(SIZES):
        assert float(added[:, first : first + size].std()) == pytest.approx(0.2 * client, rel=0.05, abs=1e-6)
        first += size


SETTINGS = {"variation": Variation("both", 20.0, 1), "noise": 0.2, "noise_fresh": True}


@pytest.mark.parametrize("method", ["fedavg", pytest.param("flea", marks=pytest.mark.thorough),
                                    pytest.param("feddata", marks=pytest.mark.thorough),
                                    pytest.param("fedproto", marks=pytest.mark.thorough)])  # fmt: skip
@pytest.mark.parametrize("executor", ["workers", "stacked workers", "graphs", "stacked"])
def test_every_executor_draws_the_same(method: str, executor: str) -> None:
    made = job(method, double=True, **SETTINGS)
    alone = run(made, rounds=2, cohort=4)
    if "workers" in executor:
        other: Any = Workers(made, options=Options(processes=2, stack=4 if "stacked" in executor else 1))
    else:
        other = Device(made, options=DeviceOptions(device="cpu", mode=executor, stack=4))  # type: ignore[arg-type]
    try:
        found = run(made, rounds=2, cohort=4, executor=other)
    finally:
        other.close()
    assert gap(found.server, alone.server) < EXACT
    if executor == "workers":
        assert not differences(found.server, alone.server)
    without = run(job(method, double=True), rounds=2, cohort=4)
    assert gap(without.server, alone.server) > 1e-4


@pytest.mark.parametrize("mode", ["graphs", "stacked"])
def test_batches_of_several_sizes_are_varied_alike_on_a_device(mode: str) -> None:
    made = job(double=True, **SETTINGS)
    made = dataclasses.replace(made, training=dataclasses.replace(made.training, batch_rule="partial"))
    options = DeviceOptions(device="cpu", mode=mode, stack=4)  # type: ignore[arg-type]
    found = run(made, rounds=2, cohort=4, executor=Device(made, options=options))
    assert gap(found.server, run(made, rounds=2, cohort=4).server) < EXACT


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("mode", ["graphs", "stacked", "eager"])
@pytest.mark.parametrize("rule", ["fill", "partial"])
def test_a_gpu_trains_on_the_same_rows(mode: str, rule: str) -> None:
    made = job(double=True, **SETTINGS)
    made = dataclasses.replace(made, training=dataclasses.replace(made.training, batch_rule=rule))
    executor = Device(made, options=DeviceOptions(device="cuda", mode=mode, stack=4))  # type: ignore[arg-type]
    found = run(made, rounds=2, cohort=4, executor=executor)
    assert gap(tree.to(found.server, "cpu"), run(made, rounds=2, cohort=4).server) < 1e-6


def test_a_turn_gives_its_varied_rows_back_once_they_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All turns of a phase are kept to its end: of a thousand clients the rows of all epochs would not fit."""
    loaded: list[tuple[int, int]] = []
    plain_loaded = ReadyTurn.loaded

    def noted(turn: ReadyTurn) -> ReadyTurn:
        after = plain_loaded(turn)
        loaded.append((len(turn.x), after.x.untyped_storage().nbytes()))
        return after

    monkeypatch.setattr(ReadyTurn, "loaded", noted)
    made = job(variation=Variation("horizontal"))
    run(made, rounds=1, cohort=4, executor=Device(made, options=DeviceOptions(device="cpu", mode="graphs")))
    uses = [2 * 8 * -(-size // 8) if size > 8 else 2 * size for size in SIZES]
    assert sorted(loaded) == sorted((count, 0) for count in uses)
