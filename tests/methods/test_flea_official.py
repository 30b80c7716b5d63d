from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.losses import released_distance_correlation
from fewfed.method import Batch, Context
from fewfed.methods.flea import FLea, Share
from fewfed.methods.flea_official import FLeaOfficial, ShareWithRepeats
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from fewfed.plan import Plan, Random
from fewfed.training import Training
from fewfed.tree import Tree
from support import batch_of, context, digits, digits_federation, digits_network, job_of, run, total, trainable


def step(round: int = 3, rows: int = 8, buffer: int = 5) -> tuple[Context, Tree, Batch]:
    net, (train, _) = digits_network(), digits()
    data, others = train.rows(torch.arange(rows)), train.rows(torch.arange(100, 100 + buffer))
    teacher = tree.scale(net.model(), 1.1)
    shared: Tree = {"model": teacher}
    if buffer:
        shared |= {"features": net.apply(teacher, others.x, stop=1, train=False), "labels": others.y}
    ctx = context(net, data, shared, round=round, rounds=100, plan=Plan(0, rows))
    return ctx, trainable(net.model()), batch_of(data, FLeaOfficial().draw(Random(0, "step"), ctx, rows))


def test_the_preset_is_found_with_its_training() -> None:
    chosen = choose("flea:official")
    assert chosen.method == FLeaOfficial()
    training = Training(**chosen.training)
    assert (training.optimizer, training.reset) == ("adam", "step")
    assert (training.batch_rule, training.sampling, training.lr_rule) == ("released", "released", "linear")
    assert (FLeaOfficial().beta, FLeaOfficial().share, FLeaOfficial().distil) == (2.0, 0.1, 1.0)


def test_trap_19_the_weight_of_the_decorrelation_falls_with_the_rounds(flea_values: dict[str, Any]) -> None:
    for round, weight in flea_values["official_lambda2_schedule"].items():
        assert FLeaOfficial().weight_at(int(round)) == pytest.approx(weight, abs=1e-9)
        ctx, work, batch = step(round=int(round))
        terms = FLeaOfficial().loss(work, ctx, batch)
        ratio = float(terms["decorrelate"].detach()) / float(terms["correlation"])
        assert ratio == pytest.approx(weight, rel=1e-5)
    assert FLeaOfficial(decorrelate=0.0).weight_at(0) == FLeaOfficial(decorrelate=0.0).weight_at(50) == 0.0


def test_the_loss_is_that_of_the_released_code() -> None:
    """CE on raw rows + soft CE on the mixture + KL on unmixed buffer rows + the scheduled R."""
    ctx, work, batch = step(round=3)
    net, row, lam = ctx.net, batch.drawn["row"], batch.drawn["lam"]
    method = FLeaOfficial()
    terms = method.loss(work, ctx, batch)

    model = net.model()
    own = net.apply(model, batch.x, stop=1)
    logits = net.apply(model, batch.x)
    others = ctx.shared["features"][row]
    paired = len(row)
    weight = lam.reshape(-1, 1, 1, 1)
    mixed = weight * own[:paired] + (1 - weight) * others
    eye = torch.eye(10)
    target = lam[:, None] * eye[batch.y[:paired]] + (1 - lam[:, None]) * eye[ctx.shared["labels"][row]]
    student = net.apply(model, others, start=1)
    teacher = net.apply(ctx.shared["model"], others, start=1, train=False)
    expected = {
        "task": cross_entropy(logits, batch.y),
        "mixed": cross_entropy(net.apply(model, mixed, start=1), target),
        "distil": kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean"),
        "decorrelate": 2.7 * released_distance_correlation(batch.x, own),
    }
    assert paired == 5
    for name, value in expected.items():
        assert float(terms[name].detach()) == pytest.approx(float(value), rel=1e-5)
    assert set(terms) == {*expected, "correlation"}
    assert float(total(method, terms).detach()) == pytest.approx(float(sum(expected.values())), rel=1e-5)


def test_the_first_round_halves_the_distillation_and_sees_raw_rows_only() -> None:
    ctx, work, batch = step(round=0, buffer=0)
    assert set(batch.drawn) == {"lambda2"}, "no rows are drawn to be mixed in"
    terms = FLeaOfficial().loss(work, ctx, batch)
    logits = ctx.net.apply(ctx.net.model(), batch.x)
    teacher = ctx.net.apply(ctx.shared["model"], batch.x, train=False)
    divergence = kl_div(logits.log_softmax(1), teacher.softmax(1), reduction="batchmean")
    assert float(terms["task"].detach()) == pytest.approx(float(cross_entropy(logits, batch.y)), rel=1e-5)
    assert float(terms["distil"].detach()) == pytest.approx(0.5 * float(divergence), rel=1e-4)
    assert float(terms["decorrelate"].detach()) == pytest.approx(3 * float(terms["correlation"]), rel=1e-5)
    assert "mixed" not in terms


def test_running_statistics_before_the_cut_move_twice_a_step() -> None:
    """From zero, one update by b gives 0.1·b and a second one by the same batch 0.19·b."""
    moved = {}
    for method in (FLea(), FLeaOfficial()):
        ctx, work, batch = step()
        method.loss(work, ctx, batch)
        moved[type(method)] = work["buffers"]["conv1.norm.running_mean"]
    assert bool(moved[FLea].any())
    assert torch.allclose(moved[FLeaOfficial], 1.9 * moved[FLea], atol=1e-6)


def test_the_first_round_is_three_times_as_long() -> None:
    method = FLeaOfficial()
    assert [phase.epochs for phase in method.phases(Clock(0, 10, 4))] == [12, 0]
    assert [phase.epochs for phase in method.phases(Clock(1, 10, 4))] == [4, 0]
    recorder = run(job_of("flea:official", digits_federation(4, 12)), rounds=2, cohort=2)
    assert [metrics["steps"] for metrics in recorder.metrics] == [2 * 3 * 2 * 2, 2 * 2 * 2]


def test_trap_21_the_pair_is_cut_to_the_shorter_batch() -> None:
    net, data = digits_network(), digits()[0].rows(torch.arange(64))
    shared = {"labels": torch.zeros(70, dtype=torch.long)}
    ctx = context(net, data, shared, plan=Plan(0, 64))
    draws = Random(0, "x")
    drawn = [FLeaOfficial().draw(draws, ctx, 64) for _ in range(4)]
    assert [len(draw["row"]) for draw in drawn] == [64, 6, 64, 6]
    assert [len(draw["lam"]) for draw in drawn] == [64, 6, 64, 6]
    assert sorted(torch.cat([drawn[0]["row"], drawn[1]["row"]]).tolist()) == list(range(70))
    short = [FLeaOfficial().draw(draws, ctx, 20)["row"] for _ in range(2)]
    assert [len(row) for row in short] == [20, 6]


@pytest.mark.parametrize("size", [1, 9, 10, 19, 20, 105])
def test_trap_22_the_share_is_the_floor_and_may_be_nothing(size: int) -> None:
    data = Examples(torch.zeros(size, 1, 8, 8), torch.zeros(size, dtype=torch.long))
    ctx = context(digits_network(), data, phase=FLeaOfficial().phases(Clock(1, 10, 1))[1])
    assert len(ShareWithRepeats(FLeaOfficial()).origins(ctx)) == math.floor(size / 10)
    assert len(Share(FLea()).origins(ctx)) == max(1, math.floor(size / 10))


def test_trap_24_the_shared_rows_are_fixed_and_drawn_with_replacement() -> None:
    data = Examples(torch.zeros(200, 1, 8, 8), torch.zeros(200, dtype=torch.long))
    repeated = 0
    for client in range(10):
        first = context(digits_network(), data, client=client, round=1)
        later = context(digits_network(), data, client=client, round=7)
        share = ShareWithRepeats(FLeaOfficial(share=0.5))
        rows = share.origins(first).flatten()
        assert torch.equal(rows, share.origins(later).flatten())
        repeated += len(rows) - len(set(rows.tolist()))
        assert len(set(Share(FLea(share=0.5)).origins(first).flatten().tolist())) == 100
    assert repeated > 0


def test_cohorts_are_the_released_ones_whatever_the_seed() -> None:
    drawn = [[view.cohort for view in run(job_of("flea:official", seed=seed), rounds=2).views] for seed in (0, 1)]
    assert drawn[0] == drawn[1]


def test_a_round_without_any_shared_row_is_followed_by_one_without_a_buffer() -> None:
    recorder = run(job_of("flea:official", digits_federation(6, 5)), rounds=3)
    for view in recorder.views:
        assert view.metrics["failed"] == []
        assert "features" not in view.phases[0].shared
        assert view.metrics["phases"]["share"]["rows"] == {"features": 0, "labels": 0}
