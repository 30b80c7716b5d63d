"""Membership: closed forms of the measures, and models of which it is known what they saw."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import pytest
import torch
from recorded_run import Exchanged, Kept, recorded, silent

from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.job import Job
from fewfed.methods.fedavg import FedAvg
from fewfed.methods.registry import choose
from fewfed.networks import build
from fewfed.plan import Plan
from fewfed.privacy.attacks import rmia, roc
from fewfed.privacy.attacks.case import Case
from fewfed.privacy.attacks.finding import Finding
from fewfed.privacy.attacks.membership import Membership
from fewfed.tasks.classification import Classification
from fewfed.training import Training
from support import digits, digits_federation, job_of

CLIENTS = 5


def digits_with_wrong_labels(share: float) -> tuple[Examples, Examples]:
    """Nothing but memory gets wrong labels right."""
    random = torch.Generator().manual_seed(7)
    parts = []
    for part in digits():
        wrong = torch.rand(len(part), generator=random) < share
        guess = torch.randint(10, (len(part),), generator=random)
        parts.append(Examples(part.x, torch.where(wrong, guess, part.y)))
    return parts[0], parts[1]


def overfitted(wrong: float, rows: int, rounds: int, seed: int = 0) -> Case:
    """Five clients that learn some rows by heart."""
    train, test = digits_with_wrong_labels(wrong)
    held = lambda client: train.rows(torch.arange(client * rows, (client + 1) * rows))  # noqa: E731
    training = Training(epochs=5, batch=8, lr=0.003, lr_decay=0.0)
    job = Job(
        FedAvg(), build("mlp", (1, 8, 8), 10, seed), Classification(10), GeneratedFederation(CLIENTS, held, test, 10),
        training, Plan(seed, 8),
    )  # fmt: skip
    return recorded(job, rounds=rounds, seed=seed, effort=0.4)


@cache
def by_heart() -> Case:
    """Nearly all labels are made up, and learnt."""
    return overfitted(0.9, 24, 40)


def auc_of(found: tuple[Finding, ...], variant: str) -> float:
    (one,) = [each for each in found if each.variant == variant]
    return one.measures[0].value


def test_the_area_is_the_share_of_pairs_in_order() -> None:
    random = torch.Generator().manual_seed(0)
    members = torch.randint(12, (40,), generator=random).double()
    others = torch.randint(10, (30,), generator=random).double()
    pairs = (members[:, None] > others) + 0.5 * (members[:, None] == others)
    value, low, high = roc.area(members, others)
    assert value == pytest.approx(float(pairs.double().mean()))
    assert low < value < high


def test_delongs_interval_covers_as_often_as_it_says() -> None:
    random = torch.Generator().manual_seed(1)
    truth = float(torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(1 / 2**0.5)))
    covered = 0
    for _ in range(400):
        members, others = torch.randn(60, generator=random) + 1, torch.randn(60, generator=random)
        _, low, high = roc.area(members, others)
        covered += low <= truth <= high
    assert 0.91 <= covered / 400 <= 0.985


def test_groups_that_are_apart_still_have_an_interval() -> None:
    value, low, high = roc.area(torch.arange(10.0) + 100, torch.arange(20.0))
    assert (value, high) == (1.0, 1.0)
    assert 0.6 < low < 0.8


def test_hits_at_one_in_a_hundred_allow_one_false_alarm_in_a_hundred() -> None:
    others = torch.arange(200.0)
    assert roc.hits_at(torch.tensor([150.0, 197.5, 198.5, 300.0]), others, 0.01) == 3
    assert roc.hits_at(torch.tensor([196.5]), others, 0.01) == 0
    assert roc.hits_at(others, others, 0.01) == 2


def test_a_thousandth_is_only_measured_with_ten_thousand_others() -> None:
    random = torch.Generator().manual_seed(2)
    for count, names in ((99, 2), (9_999, 3), (10_000, 4)):
        scores = torch.randn(2, count, generator=random)
        measured = roc.measures(scores[0], scores[1], 0)
        assert len(measured) == names, [each.what for each in measured]
        assert bool(roc.left_out(count)) == (names < 4)
    for each in measured:
        assert each.low <= each.chance <= each.high, each


def test_the_threshold_is_the_best_of_all() -> None:
    random = torch.Generator().manual_seed(3)
    members, others = torch.randn(50, generator=random) + 1, torch.randn(40, generator=random)
    chosen = roc.best_threshold(members, others)
    found = float((members > chosen).double().mean() + (others <= chosen).double().mean())
    tried = [
        float((members > cut).double().mean() + (others <= cut).double().mean())
        for cut in torch.cat([members, others]).tolist()
    ]
    assert found == pytest.approx(max(tried))


def test_rmia_is_the_papers_formula() -> None:
    """Against a direct rewrite with two loops; the tie-break stays below one step of the share."""
    random = torch.Generator().manual_seed(4)
    target, rows = torch.rand(7, generator=random).double(), torch.rand(3, 7, generator=random).double()
    target_z, rows_z = torch.rand(20, generator=random).double(), torch.rand(3, 20, generator=random).double()
    a, gamma = 0.3, 1.1
    found = rmia.scores(rmia.evidence(target, rows, a=a), rmia.evidence(target_z, rows_z, a=a), gamma)
    for x in range(7):
        p_x = 0.5 * ((1 + a) * sum(float(rows[k, x]) for k in range(3)) / 3 + 1 - a)
        passed = 0
        for z in range(20):
            p_z = 0.5 * ((1 + a) * sum(float(rows_z[k, z]) for k in range(3)) / 3 + 1 - a)
            passed += float(target[x]) / p_x / (float(target_z[z]) / p_z) > gamma
        assert passed / 20 <= float(found[x]) < (passed + 1) / 20


def test_confidence_is_a_softmax_of_half_the_logits_with_a_margin() -> None:
    """Written out for single numbers; also far out, where a plain softmax is 1 in double precision."""
    random = torch.Generator().manual_seed(6)
    said, labels = 12 * torch.randn(2, 9, 5, generator=random).double(), torch.arange(9) % 5
    found = rmia.confidence(said, labels)
    assert found.shape == (2, 9)
    for model in range(2):
        for row in range(9):
            logits = [float(each) / 2 for each in said[model, row]]
            label = math.exp(logits[row % 5] - 0.6)
            others = sum(math.exp(each) for number, each in enumerate(logits) if number != row % 5)
            assert float(found[model, row]) == pytest.approx(label / (label + others))


def test_references_that_saw_a_row_do_not_speak_for_it() -> None:
    likely = torch.tensor([[0.9, 0.01], [0.05, 0.8]]).double()
    seen = torch.tensor([[True, False], [False, False]])
    found = rmia.evidence(torch.tensor([0.4, 0.4]).double(), likely, seen, a=1.0)
    assert float(found[0]) == pytest.approx(0.4 / 0.05, rel=1e-6)
    with pytest.raises(ValueError, match="no row of the population"):
        rmia.scores(found, rmia.evidence(found, likely, torch.ones(2, 2, dtype=torch.bool)))


def test_a_model_that_learnt_by_heart_gives_its_members_away() -> None:
    found = tuple(Membership().findings(by_heart(), silent))
    assert auc_of(found, "loss threshold, global model") > 0.9
    assert auc_of(found, "RMIA, 4 reference models, global model") > 0.9
    assert auc_of(found, "loss threshold, single uploads") > 0.9
    for each in found:
        for measure in each.measures:
            assert measure.low <= measure.value <= measure.high
            assert measure.chance is not None


@pytest.mark.parametrize(("wrong", "rows", "rounds"), [(0.3, 80, 12), (0.0, 24, 10)])
def test_rmia_is_no_weaker_than_the_loss_threshold_on_average(wrong: float, rows: int, rounds: int) -> None:
    """Where some rows are hard and others easy, which is what it corrects for; and where all are learnt by heart."""
    seeds = (0, 1, 2)
    found = [tuple(Membership().findings(overfitted(wrong, rows, rounds, seed), silent)) for seed in seeds]
    for kind in ("global model", "single uploads"):
        threshold, ratio = (
            sum(auc_of(each, f"{attack}, {kind}") for each in found) / len(seeds)
            for attack in ("loss threshold", "RMIA, 4 reference models")
        )
        assert ratio >= threshold, (kind, ratio, threshold)


def test_a_model_that_never_saw_the_members_gives_chance() -> None:
    """The same attack on the same packets, but the truth is about rows that nobody trained on."""
    case = by_heart()
    train, test = digits_with_wrong_labels(0.9)
    strangers = lambda client: train.rows(torch.arange(600 + client * 60, 600 + (client + 1) * 60))  # noqa: E731
    job = dataclasses.replace(case.job, federation=GeneratedFederation(CLIENTS, strangers, test, 10))
    found = Membership().findings(dataclasses.replace(case, job=job), silent)
    assert len(found) == 6
    for each in found:
        area = each.measures[0]
        assert area.low <= 0.5 <= area.high, each


@pytest.mark.parametrize("spec", ["flea", "feddata"])
def test_shared_rows_give_their_members_away(spec: str) -> None:
    choice = choose(spec, {"share": 0.5})
    case = recorded(job_of(choice.method, digits_federation(6, 30)), rounds=1, effort=0.2)
    (found,) = [each for each in Membership().findings(case, silent) if each.variant == "nearest shared row"]
    assert found.measures[0].value > 0.99
    assert found.measures[0].raw is not None
    assert found.measures[0].raw > 0.99


def test_rows_of_noise_give_nobody_away() -> None:
    case = recorded(job_of(choose("flea", {"share": 0.5}).method, digits_federation(6, 30)), rounds=1, effort=0.2)
    (sharing,) = [each for each in case.exchanges() if each.phase == "share"]
    random = torch.Generator().manual_seed(5)
    packets = {
        client: dataclasses.replace(
            packet, arrays={**packet.arrays, "features": torch.randn(packet.arrays["features"].shape, generator=random)}
        )
        for client, packet in sharing.packets.items()
    }
    noise = Exchanged(1, "share", sharing.broadcast, packets, {})
    found = Membership().findings(dataclasses.replace(case, record=Kept({1: [noise]})), silent)
    (area,) = [each.measures[0] for each in found if each.variant == "nearest shared row"]
    assert area.low <= 0.5 <= area.high


def test_without_models_and_rows_it_does_not_apply() -> None:
    assert "no whole model" in Membership().why_not(recorded(job_of("local", digits_federation(2, 8)), rounds=1))
    assert not Membership().why_not(recorded(job_of("fedavg", digits_federation(2, 8)), rounds=1))


def test_the_first_round_has_no_model_that_saw_anybody() -> None:
    found = Membership().findings(recorded(job_of("fedavg", digits_federation(1, 20)), rounds=1), silent)
    assert [each.variant.split(",")[-1] for each in found] == [" single uploads"] * 3


def test_sites_that_share_no_row_at_all_give_nobody_away() -> None:
    method = choose("fedmix", {"group": 10**9}).method
    case = recorded(job_of(method, digits_federation(3, 8)), rounds=1, effort=0.05)
    assert not [each for each in Membership().findings(case, silent) if each.variant == "nearest shared row"]
