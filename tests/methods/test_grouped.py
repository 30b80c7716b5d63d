"""Averages instead of rows: each is the mean of what k rows of one class would have been sent as, and no row counts
twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from packets import sent

from fewfed.conformance.clients import plain_network
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.job import Job
from fewfed.engine.turn import Member, context_of
from fewfed.errors import ConfigError, RunError
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from fewfed.privacy.shared_rows import imitated
from fewfed.tasks.regression import Regression
from support import digits, digits_federation, job_of


def job_with(spec: str, values: dict[str, Any], rows: int = 50, clients: int = 3) -> Job:
    return job_of(choose(spec, values).method, digits_federation(clients, rows))


@pytest.mark.parametrize(
    ("spec", "values", "copies"),
    [
        ("grouped(flea)", {"inner.share": 0.1}, 1),
        ("grouped(flea)", {"inner.share": 1.0}, 1),
        ("grouped(flea:official)", {"inner.share": 0.3}, 1),
        ("grouped(feddata)", {"inner.share": 0.5}, 1),
        ("grouped(fedfed)", {"inner.distil_rounds": 1, "inner.hidden": 8}, 2),
        ("grouped(ccvr(fedavg))", {"inner.epochs": 1, "inner.share": 0.5}, 1),
    ],
)
@pytest.mark.parametrize("k", [2, 5])
def test_what_is_sent_is_the_mean_of_what_its_rows_would_be_sent_as(
    spec: str, values: dict[str, Any], copies: int, k: int
) -> None:
    job = job_with(spec, {**values, "k": k})
    packets, _ = sent(job, rounds=2)
    assert packets
    for phase, shared, packet in packets:
        clock = Clock(packet.round, 2, job.training.epochs)
        member = Member(packet.sender, {}, job.method.client_init(job.setup))
        ctx = context_of(job, phase, clock, shared, member)
        inner, inside = phase.does.phase.does, phase.does.inside(ctx)  # type: ignore[attr-defined]
        work = phase.does.begin(ctx)
        origins, labels = phase.does.origins(ctx), ctx.data.y
        rows, tags = packet.arrays[phase.row_upload], packet.arrays[phase.label_upload]
        assert origins.shape == (len(rows), k)
        for number, behind in enumerate(origins):
            alone = [inner.sends(work, inside, row.reshape(1))[phase.row_upload] for row in behind]
            expected = torch.stack([each[number % copies] for each in alone]).double().mean(0)
            torch.testing.assert_close(rows[number].double(), expected, atol=1e-5, rtol=1e-4)
            assert set(labels[behind].tolist()) == {int(tags[number])}, "one class, and its label"
        once = Counter(origins[::copies].flatten().tolist())
        assert not once or max(once.values()) == 1, "no row is in two averages"
        wanted = Counter(labels[inner.origins(inside)[::copies, 0]].tolist())
        groups = Counter(tags[::copies].tolist())
        held = Counter(labels.tolist())
        assert groups == +Counter({label: min(count, held[label] // k) for label, count in wanted.items()})


def test_a_class_with_fewer_than_k_rows_is_left_out_and_no_group_is_no_failure() -> None:
    train, test = digits()
    of = {label: (train.y == label).nonzero().flatten() for label in range(10)}
    kinds = [torch.cat([of[0][:5], of[1][:4]]), torch.cat([of[2][:4], of[3][:3]])]
    federation = GeneratedFederation(2, lambda client: train.rows(kinds[client]), test, classes=10)
    packets, done = sent(job_of(choose("grouped(flea)", {"k": 5, "inner.share": 1.0}).method, federation), rounds=2,
                         cohort=2)  # fmt: skip
    labels = {(packet.round, packet.sender): packet.arrays["labels"].tolist() for _, _, packet in packets}
    assert labels == {(0, 0): [0], (0, 1): [], (1, 0): [0], (1, 1): []}
    shapes = {tuple(packet.arrays["features"].shape[1:]) for _, _, packet in packets}
    assert len(shapes) == 1, "where there is no group, it is still known what one would be"
    assert len(done.server["inner"]["labels"]) == 1


def test_groups_larger_than_memory_leave_nothing_and_take_none() -> None:
    packets, _ = sent(job_with("grouped(flea)", {"k": 10**15}))
    assert [len(packet.arrays["labels"]) for _, _, packet in packets] == [0, 0, 0]


def test_a_method_that_cannot_do_without_rows_says_what_is_missing() -> None:
    job = job_with("grouped(ccvr(fedavg))", {"k": 1000, "inner.epochs": 1})
    with pytest.raises(RunError, match="no client sent a row to calibrate with"):
        sent(job)


def groups_in(job: Job, rounds: int) -> dict[tuple[int, int], set[frozenset[int]]]:
    found = {}
    packets, _ = sent(job, rounds=rounds)
    for phase, shared, packet in packets:
        member = Member(packet.sender, {}, job.method.client_init(job.setup))
        ctx = context_of(job, phase, Clock(packet.round, rounds, 1), shared, member)
        found[packet.round, packet.sender] = {frozenset(each.tolist()) for each in phase.does.origins(ctx)}
    return found


def test_groups_stay_the_same_unless_they_are_to_be_fresh() -> None:
    for fresh in (False, True):
        found = groups_in(job_with("grouped(flea)", {"k": 5, "fresh": fresh, "inner.share": 0.2}), rounds=2)
        for client in range(3):
            assert found[0, client]
            assert (found[0, client] == found[1, client]) is not fresh


def test_over_all_rounds_fixed_groups_are_no_more_than_a_class_has_whole_groups() -> None:
    """And fresh ones are more with every round."""
    distinct = {}
    for fresh in (False, True):
        job = job_with("grouped(flea)", {"k": 5, "fresh": fresh, "inner.share": 1.0})
        found = groups_in(job, rounds=6)
        for client in range(3):
            labels = job.federation.examples(client).y
            groups = set().union(*(found[round, client] for round in range(6)))
            by_class = Counter(int(labels[min(group)]) for group in groups)
            held = Counter(labels.tolist())
            if not fresh:
                assert by_class == +Counter({label: count // 5 for label, count in held.items()})
            distinct[fresh, client] = len(groups)
    assert all(distinct[True, client] > 3 * distinct[False, client] for client in range(3))


@pytest.mark.parametrize("fresh", [False, True])
def test_who_knows_the_groups_solves_for_rows_where_groups_are_fresh_and_the_network_stands_still(fresh: bool) -> None:
    """Averages are linear in features. Rounds of fresh groups determine every row; fixed ones only ever their means."""
    rounds, k = 12, 5
    values = {"k": k, "fresh": fresh, "inner.share": 1.0}
    training = {"optimizer": "sgd", "lr": 1e-12, "lr_floor": 0.0}
    federation = digits_federation(1, 60)
    job = job_of(choose("grouped(flea)", values).method, federation, net=plain_network(), training=training)
    packets, _ = sent(job, rounds=rounds, cohort=1)
    rows = len(federation.examples(0))
    system, averages = [], []
    for phase, shared, packet in packets:
        member = Member(packet.sender, {}, job.method.client_init(job.setup))
        ctx = context_of(job, phase, Clock(packet.round, rounds, 1), shared, member)
        origins = phase.does.origins(ctx)
        system.append(torch.zeros(len(origins), rows, dtype=torch.float64).scatter(1, origins, 1 / k))
        averages.append(packet.arrays["features"].flatten(1).double())
    solved = torch.linalg.lstsq(torch.cat(system), torch.cat(averages), driver="gelsd").solution
    truth = job.net.apply(job.net.model(), federation.examples(0).x, stop=phase.does.shares_at(ctx), train=False)
    error = (solved - truth.flatten(1).double()).norm(dim=1) / truth.flatten(1).double().norm(dim=1)
    large = torch.isin(federation.examples(0).y, federation.examples(0).y.bincount().argmax())
    found = float((error[large] < 0.01).double().mean())
    assert found == (1.0 if fresh else 0.0)


def test_the_declared_number_of_rows_is_the_least_that_holds() -> None:
    for spec, values, expected in (
        ("grouped(flea)", {"k": 5, "inner.share": 0.1}, 0.1),
        ("grouped(flea)", {"k": 5, "inner.share": 0.5}, 0.2),
        ("grouped(fedfed)", {"k": 4}, 0.5),
        ("grouped(flea)", {"k": 1, "inner.share": 0.5}, 0.5),
    ):
        phases = [p for round in range(30) for p in choose(spec, values).method.phases(Clock(round, 30, 1))]
        rows = {each.rows for phase in phases if phase.row_uploads for each in phase.uploads.values()}
        assert rows == {expected}


def test_noise_inside_is_averaged_and_noise_outside_is_not() -> None:
    """Noise of deviation 1 on single rows is one of 1/sqrt(5) on their average; labels and rows behind stay."""
    base = {"k": 5, "inner.share": 1.0}
    plain = [p.arrays["x"] for _, _, p in sent(job_with("grouped(feddata)", base))[0]]
    values = {"clip": 100.0, "sigma": 0.01}
    inside = {"k": 5, **{f"inner.{name}": value for name, value in values.items()}, "inner.inner.share": 1.0}
    outside = {**values, "inner.k": 5, "inner.inner.share": 1.0}
    for spec, settings, expected in (
        ("grouped(noised(feddata))", inside, 5**-0.5),
        ("noised(grouped(feddata))", outside, 1.0),
    ):
        noisy = [p.arrays["x"] for _, _, p in sent(job_with(spec, settings))[0]]
        noise = torch.cat([b - a for a, b in zip(plain, noisy, strict=True)])
        assert float(noise.std()) == pytest.approx(expected, rel=0.1)


def test_an_attacker_can_do_the_same_with_rows_of_its_own() -> None:
    job = job_with("grouped(feddata)", {"k": 5, "inner.share": 0.5})
    phase = job.method.phases(Clock(0, 5, 1))[0]
    _, test = digits()
    found = imitated(job, phase, Clock(0, 5, 1), {}, test, 30)
    assert found.origins.shape[1] == 5
    torch.testing.assert_close(found.sent, found.sources)


def test_what_has_no_classes_is_refused() -> None:
    job = job_of("grouped(feddata)", task=Regression(1))
    with pytest.raises(ConfigError, match="averages rows of one class: expected a classification task"):
        job.check()


def test_one_row_is_as_it_was() -> None:
    rows = Examples(*(getattr(digits()[0].rows(torch.arange(30)), name) for name in "xy"))
    federation = GeneratedFederation(1, lambda _: rows, digits()[1], classes=10)
    plain, one = (
        sent(job_of(choose(spec, values).method, federation), cohort=1)[0][0][2].arrays
        for spec, values in (("flea", {}), ("grouped(flea)", {"k": 1}))
    )
    assert all(torch.equal(plain[name], one[name]) for name in plain)
