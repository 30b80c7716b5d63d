"""Clipped and noisy local steps, against loops over rows, FedAvg and the noise that packets carry."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from fewfed import networks, tree
from fewfed.engine.executors.cuda.drawing import Drawing
from fewfed.engine.executors.sequential import Sequential
from fewfed.engine.job import Job
from fewfed.engine.step import Step
from fewfed.errors import ConfigError, RunError
from fewfed.method import Batch, Context
from fewfed.methods.dp import DP, clipped_sum
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.fedprox import FedProx
from fewfed.methods.flea import FLea
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from fewfed.plan import Random
from fewfed.tree import Tree
from support import context, digits, digits_federation, digits_network, gap, gradients, job_of, run, same, trainable

NET = networks.build("mlp", (1, 8, 8), 10, 3)


def job_with(method: Any, rows: int = 12, **training: Any) -> Job:
    return job_of(method, digits_federation(4, rows), net=NET, training=training)


@pytest.mark.parametrize("inner", [FedAvg(), FedProx(mu=0.3), FLea(decorrelate=0.0)])
def test_without_noise_and_with_nothing_to_clip_it_is_what_it_wraps(inner: Any) -> None:
    plain = run(job_with(inner), rounds=3).server
    private = run(job_with(DP(inner, clip=1e9, sigma=0.0)), rounds=3).server["inner"]
    assert gap(plain, private) < 2e-6
    neutral = run(job_with(DP(inner, clip=math.inf, sigma=0.0)), rounds=3).server["inner"]
    assert same(plain, neutral)


@pytest.mark.parametrize("clip", [0.05, 0.7, 50.0])
@pytest.mark.parametrize("inner", [FedAvg(), FedProx(mu=0.3)])
def test_a_step_is_the_mean_of_clipped_gradients_of_single_rows(inner: Any, clip: float) -> None:
    """By a loop over rows, each with a tape of its own."""
    rows = digits()[0].rows(torch.arange(7))
    method = DP(inner, clip=clip, sigma=0.0)
    phase = method.phases(Clock(0, 1, 1))[0]
    ctx = context(NET, rows, phase=phase, state={"inner": {}, "own": {}})
    work = trainable(tree.map(lambda leaf: leaf + 0.01, NET.model()))
    batch = Batch(rows.x, rows.y, phase.does.draw(ctx.plan.random(0, "train", 0), ctx, 7))
    found, terms = Step(frozenset()).by_tape(work, ctx, batch)
    assert terms == {}
    expected: dict[str, Tensor] = {name: torch.zeros_like(leaf) for name, leaf in work["params"].items()}
    for row in range(7):
        alone = Batch(rows.x[row : row + 1], rows.y[row : row + 1], {})
        inner_ctx = dataclasses.replace(ctx, phase=inner.phases(Clock(0, 1, 1))[0])
        loss = torch.stack(list(inner.loss(work, inner_ctx, alone).values())).sum()
        grads = gradients(loss, work)
        length = torch.sqrt(sum((leaf.square().sum() for leaf in grads.values()), torch.zeros(())))
        for name, leaf in grads.items():
            expected[name] += leaf * min(1.0, clip / float(length)) / 7
    assert gap(found, expected) < 1e-6


def test_a_row_moves_the_sum_by_no_more_than_the_clip_whatever_it_is() -> None:
    random = torch.Generator().manual_seed(0)
    for scale in (1e-20, 1.0, 1e10, math.inf, math.nan):
        rows = {"a": torch.randn(5, 3, 4, generator=random), "b": torch.randn(5, 2, generator=random)}
        changed = {name: leaf.clone() for name, leaf in rows.items()}
        changed["a"][2] *= scale
        empty = {name: torch.cat([leaf[:2], leaf[3:]]) for name, leaf in rows.items()}
        with_row, without = (torch.cat([leaf.flatten() for leaf in clipped_sum(each, 0.5).values()])
                             for each in (changed, empty))  # fmt: skip
        assert float((with_row - without).norm()) <= 0.5 + 1e-6


def test_numbers_too_short_to_measure_a_gradient_with_are_refused() -> None:
    """Squares of 1e-4 vanish in half precision, so that a gradient 14 times as long as the clip would be let through.
    Rounding moves a weight of 1 by half of a clip of 1e-3."""
    small = torch.full((1, 20_000), 1e-4, dtype=torch.float16)
    assert not small.square().any()
    assert float(small.double().norm()) > 14 * 1e-3
    for spec in ("dp(fedavg)", "central-dp(fedavg)"):
        for dtype in (torch.float16, torch.bfloat16):
            job = job_of(choose(spec).method, digits_federation(4, 12), net=NET.to(dtype))
            with pytest.raises(ConfigError, match=r"in numbers of few bits.*expected a network in single precision"):
                job.check()
        job_of(choose(spec).method, digits_federation(4, 12), net=NET).check()


class Packets(Sequential):
    """Keeps the models that left."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.models: dict[tuple[int, int], Any] = {}

    def run(self, briefing: Any, members: Any) -> Any:
        for outcome in super().run(briefing, members):
            self.models[briefing.clock.round, outcome.packet.sender] = tree.clone(outcome.packet.arrays["model"])
            yield outcome


def flat(model: Any) -> Tensor:
    return torch.cat([leaf.flatten() for leaf in model["params"].values()])


@pytest.mark.parametrize(("clip", "sigma"), [(0.5, 1.0), (2.0, 3.0)])
def test_packets_carry_noise_as_wide_as_the_clip_that_was_applied(clip: float, sigma: float) -> None:
    """One SGD step with rate 1 on one batch of 8: what noise changes in a packet is sigma · clip / 8 wide."""
    models = []
    for noise in (0.0, sigma):
        job = job_with(DP(FedAvg(), clip=clip, sigma=noise), rows=8, epochs=1, batch=8, optimizer="sgd", lr=1.0)
        executor = Packets(job)
        run(job, rounds=1, cohort=4, executor=executor)
        models.append([flat(executor.models[0, client]) for client in range(4)])
    noises = [noisy - quiet for quiet, noisy in zip(*models, strict=True)]
    for noise in noises:
        count = len(noise)
        assert float(noise.std()) == pytest.approx(sigma * clip / 8, rel=5 / math.sqrt(2 * count))
        assert abs(float(noise.mean())) < 5 * sigma * clip / 8 / math.sqrt(count)
    assert abs(float(torch.corrcoef(torch.stack(noises[:2]))[0, 1])) < 5 / math.sqrt(len(noises[0]))


def test_noise_is_new_in_every_step_and_round() -> None:
    method = DP(FedAvg())
    phase = method.phases(Clock(0, 2, 1))[0]
    data = digits()[0].rows(torch.arange(8))
    for protection in ("seed", "system"):
        ctx = context(NET, data, phase=phase, state={"inner": {}, "own": {}})
        ctx = dataclasses.replace(ctx, plan=dataclasses.replace(ctx.plan, protection=protection))
        draws = []
        for round in (0, 1):
            random = ctx.plan.random(round, "train", 0)
            draws += [flat({"params": phase.does.draw(random, ctx, 8)["noise"]}) for _ in range(2)]
        corrected = torch.corrcoef(torch.stack(draws)) - torch.eye(4)
        assert float(corrected.abs().max()) < 5 / math.sqrt(len(draws[0]))


def test_a_real_sites_noise_cannot_be_computed_again_and_a_simulations_can() -> None:
    seeded = job_with(DP(FedAvg()))
    real = dataclasses.replace(seeded, plan=dataclasses.replace(seeded.plan, protection="system"))
    assert same(run(seeded).server, run(seeded).server)
    assert not same(run(real).server, run(real).server)


class Shaky(FedAvg):
    """Draws noise of its own in every step."""

    def draw(self, random: Random, ctx: Context, size: int) -> Tree:
        return {"shake": random.normal(50)}


@pytest.mark.parametrize("protection", ["seed", "system"])
@pytest.mark.parametrize("inner", [FedAvg(), Shaky()])
def test_no_two_recorded_steps_share_noise(inner: FedAvg, protection: Any) -> None:
    """Where a step draws nothing but noise from the plan, that of all steps and clients is drawn at once."""
    phase = DP(inner).phases(Clock(0, 2, 1))[0]
    ctx = context(NET, digits()[0].rows(torch.arange(8)), phase=phase, state={"inner": {}, "own": {}}, steps=3)
    ctx = dataclasses.replace(ctx, plan=dataclasses.replace(ctx.plan, protection=protection))
    drawing, found = Drawing(pinned=False), []
    for round in range(3):  # From the second time on it knows what a step draws.
        sources = [ctx.plan.random(round, "train", client) for client in range(2)]
        for packed in drawing.turns(sources, [ctx, ctx], 8):
            drawn = packed.places.unpack(packed.matrices)
            found += [leaf.flatten(1) for leaf in drawn["noise"].values() if leaf.dim() == 3]
    noise = torch.cat([leaf for leaf in found if leaf.shape[1] == found[0].shape[1]])
    together = torch.corrcoef(noise) - torch.eye(len(noise))
    assert len(noise) >= 18
    assert float(together.abs().max()) < 6 / math.sqrt(noise.shape[1])


def test_losses_computed_without_noise_are_not_reported() -> None:
    record = run(job_with(DP(FedAvg()))).metrics[0]
    assert "terms" not in record["phases"]["train"]
    assert "terms" in run(job_with(FedAvg())).metrics[0]["phases"]["train"]


REFUSED = {
    "feddecorr": "sets rows of a batch against each other",
    "flea": "sets rows of a batch against each other",
    "fedlc": "looks at class counts of the client",
    "fedproto": "looks at rows of the client",
    "feddata": "trains on other rows than the client's own",
    "fedsam": "takes several gradients a step",
    "mixup": r"not of one row by itself: it looks for other rows .* \(in loss, mixup.py, line \d+\)",
    "manifold-mixup": "not of one row by itself",
    "moex": "not of one row by itself",
    "fedfed": "not of one row by itself",
    "fedfa": "not of one row by itself",
    "fedfa-anchor": "not of one row by itself",
    "fedrobust": r"asks for gradients of '.*' too",
    "fedgen-latent": "looks at class counts of the client",
    "dp": "clips gradients of rows already",
}


@pytest.mark.parametrize("inner", REFUSED)
def test_what_cannot_be_bounded_row_by_row_is_refused_before_it_runs(inner: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[inner]):
        job_with(choose(f"dp({inner})").method).check()


TORCHS_WORDS = ("Error", "out of bounds", "aten::", "batch_size", "captured", "Hidden")


@pytest.mark.parametrize("inner", REFUSED)
def test_refusals_are_sentences_of_this_project(inner: str) -> None:
    with pytest.raises(ConfigError) as found:
        job_with(choose(f"dp({inner})").method).check()
    assert not [word for word in TORCHS_WORDS if word in str(found.value)]


def test_a_mistake_in_a_loss_is_not_taken_for_rows_that_belong_together() -> None:
    class Wrong(FedAvg):
        def loss(self, work: Any, ctx: Any, batch: Any) -> dict[str, Tensor]:
            return {"task": batch.nothing}

    with pytest.raises(ConfigError, match=r"AttributeError: .*'nothing' \(in \w+, test_dp.py, line \d+\)"):
        job_with(DP(Wrong())).check()


def test_a_wrapper_outside_that_takes_gradients_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected dp outside of it"):
        job_with(choose("fedfa(dp(fedavg))").method).check()


def test_batchnorm_is_refused_and_another_network_advised() -> None:
    with pytest.raises(ConfigError, match=r"cannot use BatchNorm, which network 'digits-cnn' has: .*GroupNorm"):
        job_of(DP(FedAvg()), net=digits_network()).check()


def test_noise_needs_a_clip() -> None:
    with pytest.raises(ConfigError, match="expected a finite clip"):
        job_with(DP(FedAvg(), clip=math.inf)).check()


def test_a_loss_that_couples_rows_only_later_is_found_when_it_does() -> None:
    class Later(FedAvg):
        def loss(self, work: Any, ctx: Any, batch: Any) -> dict[str, Tensor]:
            terms = super().loss(work, ctx, batch)
            return {**terms, "spread": 5.0 * float(ctx.clock.round > 2) * batch.x.var(0, correction=0).sum()}

    with pytest.raises(RunError, match="sets rows of a batch against each other") as ended:
        run(job_with(DP(Later(), clip=1.0)), rounds=4)
    reason = str(ended.value).split("loss: ")[1]
    assert not re.search(r"\d", reason), "who coordinates reads it, and exact losses are of the client's rows"
