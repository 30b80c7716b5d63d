"""Defences around a method that nobody here has seen: one that trains and sends features in the same phase."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from packets import sent

from fewfed.engine.executors.cuda.executor import Device
from fewfed.engine.executors.cuda.options import Options
from fewfed.errors import ConfigError
from fewfed.method import Combined, Context, Method, Report, Setup
from fewfed.methods.blurred import Blurred
from fewfed.methods.bottlenecked import Bottlenecked
from fewfed.methods.decorrelated import Decorrelated
from fewfed.methods.grouped import Grouped
from fewfed.methods.noised import Noised
from fewfed.methods.quantised import Quantised
from fewfed.methods.registry import choose
from fewfed.phase import MODEL, Clock, Phase, Role, shared_rows
from fewfed.tree import Tree
from support import digits_federation, job_of, run


@dataclass(frozen=True)
class AtOnce(Method):
    """Sends the model and features of all rows, whenever it has trained."""

    name = "at-once"

    def phases(self, clock: Clock) -> tuple[Phase, ...]:
        rows = shared_rows(1.0, features=Role.FEATURES, labels=Role.LABELS)
        return (Phase("train", self, clock.epochs, {**MODEL, **rows}),)

    def shares_at(self, known: Setup | Context) -> int:
        return 1

    def end(self, work: Tree, ctx: Context) -> Report:
        report = super().end(work, ctx)
        features = ctx.net.apply(work, ctx.data.x, stop=1, train=False)
        return report._replace(upload={**report.upload, "features": features, "labels": ctx.data.y})

    def origins(self, ctx: Context) -> torch.Tensor:
        return torch.arange(ctx.size).unsqueeze(1)

    def absorb(self, server: Tree, combined: Combined) -> Tree:
        assert combined.values["features"].dim() == 4
        return super().absorb(server, combined)


AROUND: dict[str, Any] = {
    "noised": Noised(AtOnce(), clip=30.0, sigma=0.1),
    "blurred": Blurred(AtOnce(), noise=2.0),
    "quantised": Quantised(AtOnce(), bits=4),
    "decorrelated": Decorrelated(AtOnce()),
    "bottlenecked": Bottlenecked(AtOnce(), weight=0.1, noise=3.0),
}


@pytest.mark.parametrize("name", AROUND)
def test_they_protect_what_is_sent_with_the_model(name: str) -> None:
    job = job_of(AROUND[name], digits_federation(4, 14))
    packets, done = sent(job)
    phase, _, packet = packets[0]
    model = packet.arrays["model"]
    rows = job.federation.examples(packet.sender).x
    clean = job.net.apply(model, rows, stop=1, train=False)
    moved = (phase.does.decoded(packet.arrays)["features"] - clean).double()
    expected = {"noised": 3.0, "bottlenecked": 3.0, "decorrelated": 0.0}
    if name == "blurred":
        spread = clean.flatten(1).double().std(dim=1, correction=0).view(-1, 1, 1, 1)
        assert float((moved / spread).std()) == pytest.approx(2.0, rel=0.02)
    elif name in expected:
        assert float(moved.std()) == pytest.approx(expected[name], rel=0.02, abs=1e-6)
    else:
        step = (clean.flatten(1).amax(1) - clean.flatten(1).amin(1)) / 15
        assert bool((moved.flatten(1).abs().amax(1) <= step / 2 + 1e-5).all())
        assert float(moved.std()) > 0
    assert (name in done.metrics[0]["phases"]["train"]["terms"]) == (name in ("decorrelated", "bottlenecked"))


@pytest.mark.parametrize("name", ["noised", "blurred", "bottlenecked"])
def test_clients_that_are_computed_side_by_side_have_noise_of_their_own(name: str) -> None:
    job = job_of(AROUND[name], digits_federation(4, 14))
    stacked = run(job, rounds=1, cohort=4, executor=Device(job, options=Options(device="cpu", mode="stacked", stack=4)))
    one = run(job, rounds=1, cohort=4)
    ours, theirs = (done.server["inner"]["features"] for done in (stacked, one))
    assert torch.allclose(ours, theirs, atol=1e-2)


def test_what_does_not_say_what_it_sends_of_single_rows_cannot_be_grouped() -> None:
    with pytest.raises(ConfigError, match=r"does not send rows one by one: .* says so with 'copies' and 'sends'"):
        job_of(Grouped(AtOnce())).check()


def test_features_are_blurred_and_inputs_are_not() -> None:
    method = choose("bottlenecked(ccvr(flea))", {"inner.cut": "input", "inner.epochs": 1, "noise": 3.0}).method
    packets, _ = sent(job_of(method, digits_federation(3, 20), rows_public=True), rounds=2)
    inputs = [packet.arrays["features"] for phase, _, packet in packets if phase.name == "collect"]
    assert inputs
    assert all(bool(((each >= 0) & (each <= 1)).all()) for each in inputs)


def test_a_defence_inside_does_not_reach_what_is_collected_outside() -> None:
    """As the page of defences says."""
    for spec, averages in (("ccvr(grouped(flea))", False), ("grouped(ccvr(flea))", True)):
        values = {"inner.k" if not averages else "k": 2, "epochs" if not averages else "inner.epochs": 1}
        phases = choose(spec, values).method.phases(Clock(1, 2, 1))
        (collect,) = (phase for phase in phases if phase.name == "collect")
        assert (collect.does.copies == 0) is averages
