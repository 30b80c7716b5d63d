"""Recalibrated: what is retrained, on which rows, and where the next round starts; one step against torch by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from packets import Spy
from torch.nn.functional import cross_entropy

from fewfed.engine.job import PSEUDO_CLIENT, Job
from fewfed.engine.turn import Member, context_of
from fewfed.errors import ConfigError
from fewfed.method import Batch
from fewfed.methods.registry import choose
from fewfed.phase import Clock, Cohort, Role
from fewfed.tree import Tree
from support import context, digits, digits_federation, digits_network, job_of, run, same

CLOCK = Clock(1, 10, 2)


def job_with(spec: str, values: dict[str, Any] | None = None) -> Job:
    return job_of(choose(spec, values).method, digits_federation(6, 40))


def stages_that_differ(a: Tree, b: Tree) -> set[str]:
    return {name.split(".")[0] for name in a if not torch.equal(a[name], b[name])}


@pytest.mark.parametrize(("cut", "later"), [("conv1", {"conv2", "fc1", "head"}), ("fc1", {"head"})])
def test_only_later_stages_move_and_no_statistic_does(cut: str, later: set[str]) -> None:
    job = job_with("recalibrated(flea)", {"inner.cut": cut, "inner.share": 0.3})
    server = run(job, rounds=2).server
    before, after = server["inner"]["model"], job.method.predictor(server, {})
    assert stages_that_differ(before["params"], after["params"]) == later
    assert same(before["buffers"], after["buffers"])


def test_the_next_round_starts_from_what_was_retrained() -> None:
    job = job_with("recalibrated(flea)")
    spy = Spy(job)
    done = run(job, rounds=2, executor=spy)
    retrained = job.method.predictor(done.views[0].server, {})
    started = [shared["model"] for phase, shared, packet in spy.kept if phase.name == "train" and packet.round == 1]
    assert started
    assert all(same(model, retrained) for model in started)
    sharing = [shared["model"] for phase, shared, packet in spy.kept if phase.name == "share" and packet.round == 1]
    assert all(same(model, done.server["inner"]["model"]) for model in sharing), "rows are sent with the round's model"


def test_where_another_model_predicts_training_goes_on_without() -> None:
    """Around an average, what is retrained is the average, and rounds are those of the inner method alone."""
    alone, ours = (run(job_with(spec), rounds=3) for spec in ("flea", "recalibrated(averaged(flea))"))
    assert same(alone.server["model"], ours.server["inner"]["inner"]["model"])
    method = ours.views[-1].job.method
    assert stages_that_differ(
        method.inner.predictor(ours.server["inner"], {})["params"],  # type: ignore[attr-defined]
        method.predictor(ours.server, {})["params"],
    ) == {"conv2", "fc1", "head"}


def test_rows_of_the_last_rounds_are_kept_and_no_others() -> None:
    done = run(job_with("recalibrated(flea)", {"history": 2, "inner.share": 0.2}), rounds=3)
    counts = [metrics["phases"]["share"]["rows"]["labels"] for metrics in done.metrics]
    assert len(done.server["own"]["labels"]) == counts[1] + counts[2]
    assert len(done.server["inner"]["labels"]) == counts[2], "the inner method's own buffer is its own"


@pytest.mark.parametrize("spec", ["recalibrated(grouped(flea))", "recalibrated(quantised(flea))"])
def test_every_class_is_retrained_on_alike(spec: str) -> None:
    job = job_with(spec, {"inner.k": 3} if "grouped" in spec else {})
    server = run(job, rounds=2).server
    phase = job.method.phases(CLOCK)[-1]
    assert phase.cohort is Cohort.SERVER
    assert {upload.role for upload in phase.uploads.values()} == {Role.MODEL}
    ctx = context_of(job, phase, CLOCK, phase.does.broadcast(server), Member(PSEUDO_CLIENT))
    rows = phase.does.data(ctx)
    held = Counter(server["own"]["labels"].tolist())
    assert Counter(rows.y.tolist()) == dict.fromkeys(held, max(held.values()))
    known = {row.numpy().tobytes() for row in server["own"]["features"]}
    assert {row.numpy().tobytes() for row in rows.x} == known, "every row that was kept, and no other"


def test_one_step_is_cross_entropy_with_the_statistics_there_are() -> None:
    """Against a network of torch's own layers in evaluation mode, whose later half is trained by hand."""
    net, (train, _) = digits_network(), digits()
    rows = train.rows(torch.arange(12))
    features = net.apply(net.model(), rows.x, stop=1, train=False)
    phase = choose("recalibrated(flea)").method.phases(CLOCK)[-1]
    ctx = context(net, rows, {"model": net.model(), "features": features, "labels": rows.y}, phase=phase, client=-1)
    work = phase.does.begin(ctx)
    before = {name: leaf.clone() for name, leaf in work["buffers"].items()}
    terms = phase.does.loss(work, ctx, Batch(features, rows.y, {}))
    expected = cross_entropy(net.apply(net.model(), rows.x, train=False), rows.y)
    assert set(terms) == {"retrain"}
    torch.testing.assert_close(terms["retrain"], expected)
    assert same(before, work["buffers"])


def test_where_nobody_has_a_row_to_send_the_model_stays() -> None:
    job = job_with("recalibrated(grouped(flea))", {"inner.k": 1000})
    done = run(job, rounds=2)
    assert not any(metrics["failed"] for metrics in done.metrics)
    assert same(job.method.predictor(done.server, {}), done.server["inner"]["inner"]["model"])


def test_a_method_that_sends_rows_once_is_retrained_then() -> None:
    method = choose("recalibrated(ccvr(fedavg))", {"inner.epochs": 1}).method
    names = [[phase.name for phase in method.phases(Clock(round, 3, 1))] for round in range(3)]
    assert names == [["train"], ["train"], ["train", "collect", "calibrate", "recalibrated"]]
    job = job_of(method, digits_federation(6, 40))
    assert not any(metrics["failed"] for metrics in run(job, rounds=3).metrics)


def test_a_cut_behind_the_last_stage_leaves_nothing() -> None:
    with pytest.raises(ConfigError, match="comes out of the last"):
        job_with("recalibrated(flea)", {"inner.cut": "head"}).check()
