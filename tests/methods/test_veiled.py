"""Averages of clipped rows of one class, with noise that bounds what each tells of a row."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from packets import sent
from torch import Tensor

from fewfed.data.federation import GeneratedFederation
from fewfed.engine.job import Job
from fewfed.engine.turn import Member, context_of
from fewfed.errors import ConfigError
from fewfed.method import Context
from fewfed.methods.flea import FLea
from fewfed.methods.grouped import Grouped
from fewfed.methods.registry import choose
from fewfed.methods.veiled import Veiled
from fewfed.phase import Clock, Phase
from fewfed.privacy.gaussian import epsilon_of
from fewfed.privacy.ledger import Ledger, _in_sent_rows
from fewfed.privacy.noiseless import without_noise
from fewfed.tree import Tree
from support import digits, digits_federation, job_of, run

FLEA = FLea(share=1.0, decorrelate=0.0)


def job_with(method: Any, sizes: tuple[int, ...] = (40, 31, 23)) -> Job:
    return job_of(method, digits_federation(len(sizes), sizes))


def told(job: Job, phase: Phase, shared: Tree, client: int) -> Context:
    member = Member(client, {}, job.method.client_init(job.setup))
    return context_of(job, phase, Clock(0, 1, job.training.epochs), shared, member)


def singles(phase: Phase, ctx: Context) -> Tensor:
    """What each row of the client would be sent as by itself, by the inner method, unclipped."""
    inner, inside = phase.does.phase.does, phase.does.inside(ctx)  # type: ignore[attr-defined]
    return inner.sends(phase.does.begin(ctx), inside, torch.arange(ctx.size))["features"].flatten(1).double()


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("clip", [0.2, 1.0, math.inf])
def test_without_noise_it_is_the_mean_of_clipped_rows_of_which_none_is_left_over(k: int, clip: float) -> None:
    packets, _ = sent(job := job_with(Veiled(FLEA, k=k, clip=clip, sigma=0.0)))
    assert len(packets) == 3
    for phase, shared, packet in packets:
        ctx = told(job, phase, shared, packet.sender)
        alone, labels = singles(phase, ctx), ctx.data.y.tolist()
        limit = clip * alone.shape[1] ** 0.5
        short = torch.stack([row * min(1.0, limit / float(row.norm())) for row in alone])
        origins, rows = phase.does.origins(ctx), packet.arrays["features"].flatten(1).double()
        assert len(rows) == len(origins)
        for number, one in enumerate(origins.tolist()):
            behind = [row for row in one if row >= 0]
            assert len(behind) >= k
            assert {labels[row] for row in behind} == {int(packet.arrays["labels"][number])}
            torch.testing.assert_close(rows[number], short[behind].mean(0), atol=1e-5, rtol=1e-4)
        used = Counter(row for one in origins.tolist() for row in one if row >= 0)
        held = Counter(labels)
        assert set(used.values()) <= {1}, "no row is in two averages"
        assert {labels[row] for row in used} == {label for label, count in held.items() if count >= k}
        assert len(used) == sum(count for count in held.values() if count >= k), "and none of such a class is in none"
        groups = Counter(packet.arrays["labels"].tolist())
        assert groups == {label: count // k for label, count in held.items() if count >= k}


def test_a_class_of_fewer_than_k_rows_is_left_out_and_no_group_is_no_failure() -> None:
    train, test = digits()
    of = {label: (train.y == label).nonzero().flatten() for label in range(10)}
    kinds = [torch.cat([of[0][:11], of[1][:4]]), torch.cat([of[2][:4], of[3][:3]])]
    federation = GeneratedFederation(2, lambda client: train.rows(kinds[client]), test, classes=10)
    packets, _ = sent(job_of(Veiled(FLEA, k=5), federation), cohort=2)
    assert {packet.sender: packet.arrays["labels"].tolist() for _, _, packet in packets} == {0: [0, 0], 1: []}
    behind = {packet.sender: (phase.does.origins(told(job_of(Veiled(FLEA, k=5), federation), phase, shared, 0)) >= 0)
              for phase, shared, packet in packets}  # fmt: skip
    assert sorted(behind[0].sum(1).tolist()) == [5, 6]


def test_one_row_moves_its_average_by_no_more_than_the_noise_is_measured_by() -> None:
    """The claim, by brute force: each row in turn is made empty, and made as long as can be, and what would be sent
    without the noise is compared with how wide the noise on it is."""
    method = Veiled(FLEA, k=3, clip=0.5, sigma=0.7)
    job = without_noise(job_with(method, (17, 12)))
    packets, _ = sent(job, cohort=2)
    for phase, shared, packet in packets:
        ctx = told(job, phase, shared, packet.sender)
        work = phase.does.begin(ctx)
        plain = phase.does.end(work, ctx).upload["features"].flatten(1).double()
        origins = phase.does.origins(ctx)
        wide = 0.7 * 0.5 * plain.shape[1] ** 0.5 / (origins >= 0).sum(1).double()
        largest = 0.0
        for row in range(ctx.size):
            here = (origins == row).any(1)
            for value in (100.0, -100.0):
                x = ctx.data.x.clone()
                x[row] = value
                other = dataclasses.replace(ctx, data=dataclasses.replace(ctx.data, x=x))
                moved = phase.does.end(work, other).upload["features"].flatten(1).double() - plain
                assert float(moved[~here].abs().max()) == 0, "rows of other averages have no part in it"
                # Changed to anything, not only to an empty one: at most there and back.
                largest = max(largest, float((moved[here].norm(dim=1) / (wide[here] / 0.7)).max()) if here.any() else 0)
        assert 0.3 < largest <= 2 + 1e-6
        zero = singles(phase, ctx)
        limit = 0.5 * plain.shape[1] ** 0.5
        for number, one in enumerate(origins.tolist()):
            for row in (row for row in one if row >= 0):
                taken = zero[row] * min(1.0, limit / float(zero[row].norm())) / sum(each >= 0 for each in one)
                assert float(taken.norm()) <= float(wide[number]) / 0.7 * (1 + 1e-6), "an empty one in its place"


def test_noise_is_as_wide_as_said_narrower_on_larger_groups_and_new_each_time() -> None:
    sigma, clip = 1.3, 0.8
    noisy, plain = (job_with(Veiled(FLEA, k=4, clip=clip, sigma=each)) for each in (sigma, 0.0))
    (packets, _), (clean, _) = sent(noisy, rounds=1), sent(plain, rounds=1)
    parts = []
    for (phase, shared, packet), (_, _, without) in zip(packets, clean, strict=True):
        moved = (packet.arrays["features"] - without.arrays["features"]).flatten(1).double()
        behind = (phase.does.origins(told(noisy, phase, shared, packet.sender)) >= 0).sum(1, keepdim=True)
        assert len(set(behind.flatten().tolist())) > 1, "groups of several sizes"
        parts.append(moved * behind / (sigma * clip * moved.shape[1] ** 0.5))
    every = torch.cat(parts)
    assert float(every.std()) == pytest.approx(1.0, rel=5 / math.sqrt(2 * every.numel()))
    assert abs(float(every.mean())) < 5 / math.sqrt(every.numel())
    assert float((torch.corrcoef(every) - torch.eye(len(every))).abs().max()) < 6 / math.sqrt(every.shape[1])


def test_the_ledger_counts_each_release_once_however_many_rows_are_behind_it() -> None:
    """Averages whose rows were clipped one by one are a release each, and those that were clipped together are four."""
    rounds, sigma = 6, 1.5
    for method, times in ((Veiled(FLEA, k=5, sigma=sigma), 1), (choose("noised(grouped(flea))", {
            "sigma": sigma, "clip": 10.0, "inner.k": 5, "inner.inner.share": 1.0}).method, 4)):  # fmt: skip
        job = job_with(method)
        ledger = Ledger(method, 3, 3, rounds, 1)
        notes: Tree = {}
        packets, _ = sent(job)
        phase, shared, packet = packets[0]
        ctx = told(job, phase, shared, packet.sender)
        report = phase.does.end(phase.does.begin(ctx), ctx)
        for _ in range(rounds):
            _, notes = ledger.released(report, ctx, notes)
        spent = ledger.spent(notes, "server", rounds).epsilon(1e-5)
        assert spent == pytest.approx(epsilon_of(times * rounds / sigma**2, 1e-5), rel=1e-6)


def test_rows_of_a_model_of_the_clients_own_count_as_behind_every_average() -> None:
    """Averages of three and of two of five rows: one row turns all that are behind them, each from one end of its ball
    to the other, which is six and four times what it moves by itself."""
    origins = torch.tensor([[0, 1, 2], [3, 4, -1]])
    does = SimpleNamespace(origins=lambda _: origins)
    ctx: Any = SimpleNamespace(phase=SimpleNamespace(does=does), data=range(5))
    assert _in_sent_rows(ctx, True, by_all=False).tolist() == [1, 1, 1, 1, 1]
    assert _in_sent_rows(ctx, False, by_all=False).tolist() == [4, 4, 4, 4, 4]
    assert _in_sent_rows(ctx, True, by_all=True).tolist() == [6**2 + 4**2] * 5
    assert _in_sent_rows(ctx, False, by_all=True).tolist() == [2**2 + 2**2] * 5


def test_with_nothing_set_it_is_the_method_itself_bit_for_bit() -> None:
    bare = run(job_with(FLEA), rounds=2, cohort=3)
    veiled = run(job_with(Veiled(FLEA, k=1, clip=math.inf, sigma=0.0)), rounds=2, cohort=3)
    for name in ("features", "labels"):
        assert torch.equal(bare.server[name], veiled.server["inner"][name])


def test_where_groups_come_out_even_it_averages_the_rows_that_grouped_does() -> None:
    train, test = digits()
    rows = torch.cat([(train.y == label).nonzero().flatten()[:10] for label in range(3)])
    federation = GeneratedFederation(1, lambda _: train.rows(rows), test, classes=10)
    plain, veiled = (
        sent(job_of(method, federation), cohort=1)[0][0][2].arrays["features"]
        for method in (Grouped(FLEA, k=5), Veiled(FLEA, k=5, clip=math.inf, sigma=0.0))
    )
    torch.testing.assert_close(plain, veiled)


def test_noise_in_proportion_to_no_clip_is_refused() -> None:
    with pytest.raises(ConfigError, match="clip = inf: noise is in proportion to clip; expected a finite clip"):
        job_with(Veiled(FLEA, clip=math.inf)).check()
