"""Labels: what is known to leak exactly is read exactly, and what holds nothing is not read."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recorded_run import Exchanged, Kept, recorded, silent

from fewfed import tree
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.job import Job
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from fewfed.privacy.attacks.case import Case
from fewfed.privacy.attacks.finding import Finding
from fewfed.privacy.attacks.imitated_sites import played
from fewfed.privacy.attacks.label_reading import Guess, Learned, Marks
from fewfed.privacy.attacks.labels import Labels, judged
from fewfed.privacy.attacks.one_step import label_counts, one_steps
from fewfed.tasks.regression import Regression
from support import digits, digits_federation, job_of

SETS, OVERLAP, SHARES = range(3)
MARKS = "entries that only their class moves"
ONE_STEP = {"epochs": 1, "batch": 64, "optimizer": "sgd", "lr": 0.1}


def job(spec: str, clients: int = 10, rows: int = 14, **training: object) -> Job:
    return job_of(spec, digits_federation(clients, rows), training=training)


def found_in(case: Case) -> dict[tuple[str, str], Finding]:
    return {(each.phase, each.variant.split(" from ")[0]): each for each in Labels().findings(case, silent)}


def test_an_autoencoder_conditioned_on_labels_gives_label_sets_away_exactly() -> None:
    """One-hot columns of absent classes come back bit for bit as they were broadcast, in both of its phases."""
    found = found_in(recorded(job("flair"), rounds=2, cohort=5))
    for phase, clients in (("init", 10), ("cvae", 5)):
        sets = found[phase, MARKS].measures[SETS]
        assert (sets.value, sets.high, sets.rows) == (1.0, 1.0, clients)
        assert sets.chance is not None
        assert sets.chance <= 0.3
        assert "without secure aggregation" in found[phase, MARKS].threat.who


def test_class_sums_give_label_sets_away_exactly() -> None:
    method = choose("ccvr", {"form": "gaussian"}).method
    found = found_in(recorded(job_of(method, digits_federation(8, 12)), rounds=1))
    for variant in ("sent as they are", MARKS):
        assert found["collect", variant].measures[SETS].value == 1.0
    assert found["collect", "sent as they are"].measures[SHARES].value == pytest.approx(0.0, abs=1e-12)


def test_labels_of_all_rows_are_the_labels() -> None:
    method = choose("feddata", {"share": 1.0}).method
    found = found_in(recorded(job_of(method, digits_federation(8, 12)), rounds=1))
    sets, _, shares = found["setup", "sent as they are"].measures
    assert sets.value == 1.0
    assert shares.value == pytest.approx(0.0, abs=1e-12)
    assert found["setup", "sent as they are"].threat.who == "the server"


def test_ordinary_averaging_gives_most_label_sets_away() -> None:
    found = found_in(recorded(job("fedavg"), rounds=1))
    sets, overlap, shares = found["train", "learnt"].measures
    assert sets.value > 0.8
    assert overlap.value > 0.9
    assert shares.chance is not None
    assert shares.high < shares.chance


def test_of_packets_without_any_label_nothing_is_learnt() -> None:
    """Everybody hands over the broadcast with noise of its own: what the attack says is no better than chance."""
    case = recorded(job("fedavg", clients=20), rounds=1)
    (before,) = case.exchanges()
    random = torch.Generator().manual_seed(1)
    noise = lambda leaf: leaf + 0.01 * torch.randn(leaf.shape, generator=random)  # noqa: E731
    packets = {
        client: dataclasses.replace(packet, arrays={"model": tree.map(noise, before.broadcast["model"])})
        for client, packet in before.packets.items()
    }
    silenced = Exchanged(1, "train", before.broadcast, packets, {})
    found = found_in(dataclasses.replace(case, record=Kept({1: [silenced]})))
    sets, overlap, shares = found["train", "learnt"].measures
    assert sets.low <= (sets.chance or 0.0)
    assert overlap.low <= (overlap.chance or 0.0)
    assert shares.high >= (shares.chance or 1.0)
    assert ("train", MARKS) not in found


def test_marks_that_do_not_fit_every_site_are_none() -> None:
    case = recorded(job("flair"), rounds=1)
    exchanged = case.exchanges()[0]
    phase = case.phase(1, exchanged.phase)
    sites = played(case, exchanged, case.held, 20)
    assert Marks.found(phase, exchanged.broadcast, sites, 10) is not None
    mixed = [dataclasses.replace(site, counts=site.counts.roll(number)) for number, site in enumerate(sites)]
    assert Marks.found(phase, exchanged.broadcast, mixed, 10) is None


def test_sites_of_the_attacker_have_the_labels_it_says() -> None:
    case = recorded(job("fedproto"), rounds=1)
    (exchanged,) = case.exchanges()
    sites = played(case, exchanged, case.held, 15)
    assert len(sites) == 15
    for site in sites:
        assert torch.equal(site.packet.arrays["present"] > 0, site.counts > 0)
        assert int(site.counts.sum()) == 14
    assert len({int((site.counts > 0).sum()) for site in sites}) > 3


def test_one_row_in_one_step_has_the_only_negative_entry() -> None:
    found = found_in(recorded(job("fedavg", rows=1, **ONE_STEP), rounds=1))
    sets, _, shares = found["train", "gradient of the last bias, one step"].measures
    assert sets.value == 1.0
    assert shares.value == 0.0


def test_several_rows_in_one_step_are_counted_nearly_exactly() -> None:
    found = found_in(recorded(job("fedavg", rows=8, **ONE_STEP), rounds=1))
    sets, _, shares = found["train", "gradient of the last bias, one step"].measures
    assert sets.value >= 0.9
    assert shares.value < 0.05


def test_the_gradient_read_off_is_the_gradient() -> None:
    for more in ({}, {"weight_decay": 0.1}, {"momentum": 0.9}):
        case = recorded(job("fedavg", clients=2, rows=5, **{**ONE_STEP, **more}), rounds=1)
        step = one_steps(case, case.exchanges()[0])[1]
        rows, model = case.job.federation.examples(1), tree.clone(step.start)
        for leaf in model["params"].values():
            leaf.requires_grad_(True)
        loss = case.job.task.loss(case.job.net.apply(model, rows.x), rows.y)
        expected = torch.autograd.grad(loss, list(model["params"].values()))
        for name, value in zip(model["params"], expected, strict=True):
            assert torch.allclose(step.gradient[name], value.double(), atol=2e-5), (more, name)
        assert (step.rows, step.is_signs) == (5, False)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=20), st.integers(0, 10**6))
def test_with_the_true_probabilities_counts_are_exact(labels: list[int], seed: int) -> None:
    y = torch.tensor(labels)
    p = torch.rand(len(y), 5, generator=torch.Generator().manual_seed(seed)).double().softmax(1)
    gradient = (p - torch.nn.functional.one_hot(y, 5)).mean(0)
    assert torch.equal(label_counts(gradient, p.mean(0), len(y)), torch.bincount(y, minlength=5))


@given(st.integers(1, 12), st.integers(0, 10**6))
def test_counts_always_sum_to_the_batch(rows: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    counts = label_counts(torch.randn(6, generator=random), torch.rand(6, generator=random), rows)
    assert int(counts.sum()) == rows
    assert int(counts.min()) >= 0


def test_chance_is_the_better_of_two_blind_guesses() -> None:
    truth = torch.tensor([[3, 0, 1], [2, 0, 2], [0, 4, 0], [1, 1, 1]])
    everything = [Guess(torch.ones(3, dtype=torch.bool))] * 4
    sets, overlap = judged(everything, truth)
    assert (sets.value, sets.chance) == (0.25, 0.5)
    assert overlap.value == pytest.approx((2 / 3 + 2 / 3 + 1 / 3 + 1) / 4)
    assert overlap.chance == pytest.approx(max(overlap.value, (1 + 1 + 0 + 2 / 3) / 4))
    right = [Guess(row > 0, row / row.sum()) for row in truth.double()]
    assert [each.value for each in judged(right, truth)] == [1.0, 1.0, 0.0]


def test_where_nothing_is_sent_it_does_not_apply() -> None:
    assert "no client sent" in Labels().why_not(recorded(job("local"), rounds=1))
    case = recorded(job("fedavg"), rounds=1)
    assert "no classes" in Labels().why_not(
        dataclasses.replace(case, job=dataclasses.replace(case.job, task=Regression()))
    )


def test_nothing_with_an_axis_of_classes_teaches_nothing() -> None:
    case = recorded(job("flair"), rounds=1)
    exchanged = case.exchanges()[0]
    phase = case.job.phase("init", Clock(0, 1, 1))
    assert Learned.fitted(phase, exchanged.broadcast, played(case, exchanged, case.held, 4), 10) is None


def test_an_attacker_with_few_rows_plays_no_sites() -> None:
    train, test = digits()
    few = GeneratedFederation(
        4, lambda client: train.rows(torch.arange(8) + 8 * client), test.rows(torch.arange(5)), 10
    )
    assert found_in(recorded(job_of("fedavg", few), rounds=1)) == {}
