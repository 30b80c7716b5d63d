"""Who has the rows asks which of them are behind what was sent: averages and noise hide less from it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from attack_support import Sends, case_of, digit_sites, silent, value_of
from recorded_run import Kept
from torch import Tensor

from fewfed.method import Method
from fewfed.methods.blurred import Blurred
from fewfed.methods.fedmix import FedMix
from fewfed.methods.flea import FLea
from fewfed.methods.grouped import Grouped
from fewfed.methods.quantised import Quantised
from fewfed.privacy.attacks.alone import sent_alone
from fewfed.privacy.attacks.candidates import ByCandidates
from fewfed.privacy.attacks.case import Case
from fewfed.privacy.attacks.finding import Finding
from fewfed.privacy.attacks.rebuilders import ByRidge
from fewfed.privacy.attacks.reconstruct import Reconstruct

ROWS = FLea(share=0.5, decorrelate=0.0)
AVERAGES = Grouped(ROWS, k=5)
WORDS = "re-identified among"


def attacked(case: Case) -> dict[str, Finding]:
    return {one.variant: one for one in Reconstruct(rebuilders=(ByRidge(),)).findings(case, silent)}


def features(case: Case, x: Tensor) -> np.ndarray:
    """Behind the stage whose output has the shape of what was sent: by the network itself, stage by stage."""
    (exchanged,) = case.with_rows()
    shape, net = case.shared_rows(exchanged).sent.shape[1:], case.job.net
    with torch.no_grad():
        for number in range(len(net.stages)):
            x = net.apply(exchanged.broadcast["model"], x, start=number, stop=number + 1, train=False)
            if x.shape[1:] == shape:
                return x.flatten(1).double().numpy()
    raise AssertionError("no stage gives what was sent")


def by_least_squares(case: Case, penalty: float) -> float:
    """Independent of the attack: which candidate of its class has the largest share in each average."""
    (exchanged,) = case.with_rows()
    victims = case.shared_rows(exchanged)
    marks, y = features(case, victims.rows.x), victims.rows.y.numpy()
    assert victims.labels is not None
    hits = []
    for row, label, behind in zip(victims.sent, victims.labels.tolist(), victims.origins.tolist(), strict=True):
        those = np.flatnonzero(y == label)
        apart = marks[those] - marks[those].mean(0)
        goal = row.flatten().double().numpy() - marks[those].mean(0)
        products = apart @ apart.T
        size = penalty * np.trace(products) / len(products)
        shares = np.linalg.solve(products + size * np.eye(len(products)), apart @ goal)
        hits.append(those[shares.argmax()] in behind)
    return float(np.mean(hits))


def test_averages_with_noise_are_taken_apart_by_who_has_the_rows() -> None:
    case = case_of(Blurred(AVERAGES, noise=1.0), clients=digit_sites(10, 60), rounds=3, effort=0.3)
    found = attacked(case)
    one, several, ridge = (found[name] for name in ("candidates", "candidates, rounds", "ridge"))
    own = max(by_least_squares(case, penalty) for penalty in (1.0, 10.0))
    words = next(measure.what for measure in ridge.measures if "the attacker's way" in measure.what)
    assert own > value_of(ridge, words).value + 0.2
    assert value_of(one, words).value >= own - 0.1
    assert value_of(several, words).value >= value_of(one, words).value - 0.05
    assert value_of(several, words).value > 0.8
    behind = value_of(several, "rows behind found, of as many named")
    assert behind.value > 0.5
    assert behind.chance is not None
    assert behind.chance < 0.2


def test_single_rows_are_all_found() -> None:
    case = case_of(ROWS, clients=digit_sites(6, 40), rounds=2, effort=0.3)
    (exchanged,) = case.with_rows()
    found = attacked(case)["candidates"]
    (measure,) = found.measures
    assert measure.value == 1.0
    assert measure.rows == len(case.shared_rows(exchanged))


def test_what_is_noise_alone_says_of_no_candidate_that_it_is_there() -> None:
    case = case_of(Sends(signal=0.0, noise=1.0), clients=digit_sites(6, 40), rounds=1, effort=0.3)
    (measure,) = attacked(case)["candidates"].measures
    assert measure.chance is not None
    assert measure.low <= measure.chance + 0.05


@pytest.mark.parametrize(
    ("method", "error"),
    [(ROWS, 1e-6), (AVERAGES, 1e-6), (Blurred(AVERAGES, noise=3.0), 1e-6), (Quantised(AVERAGES, bits=8), 0.01)],
    ids=["rows", "averages", "noise", "codes"],
)
def test_what_a_candidate_would_be_sent_as_is_its_features(method: Method, error: float) -> None:
    """Without the noise, and also where only averages are sent."""
    case = case_of(method, clients=digit_sites(6, 40), rounds=1, effort=0.3)
    (exchanged,) = case.with_rows()
    rows = case.held.rows(torch.arange(37))
    found = sent_alone(case, exchanged, rows, 10_000)
    assert isinstance(found, Tensor)
    wanted = features(case, rows.x)
    assert np.abs(found.numpy() - wanted).max() <= error * np.abs(wanted).max()


@pytest.mark.parametrize("alone", [False, True])
def test_inputs_that_are_sent_as_averages_are_candidates_as_they_are(
    alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where sets of rows cannot be taken apart, so that candidates go one by one."""
    if alone:
        monkeypatch.setattr("fewfed.privacy.attacks.alone.groups_of", lambda _one: None)
    case = case_of(FedMix(group=5), clients=digit_sites(6, 40), rounds=1, effort=0.3)
    (exchanged,) = case.with_rows()
    rows = case.held.rows(torch.arange(7))
    found = sent_alone(case, exchanged, rows, 10_000)
    assert isinstance(found, Tensor)
    assert torch.allclose(found, rows.x.flatten(1), atol=1e-5)


def test_averages_of_inputs_of_any_classes_are_taken_apart() -> None:
    case = case_of(FedMix(group=5), clients=digit_sites(6, 40), rounds=1, effort=0.3)
    found = attacked(case)
    told = [measure.value for measure in found["ridge"].measures if measure.what.startswith(WORDS)]
    assert value_of(found["candidates"], WORDS).value > max(0.9, max(told) + 0.1)
    assert value_of(found["candidates"], "rows behind found, of as many named").value > 0.6


def test_with_one_round_there_is_nothing_to_put_together() -> None:
    case = case_of(AVERAGES, clients=digit_sites(6, 40), rounds=1, effort=0.3)
    found = attacked(case)["candidates, rounds"]
    assert not found.measures
    assert "only one round" in found.note


def test_it_is_the_same_whoever_else_attacks() -> None:
    case = case_of(AVERAGES, clients=digit_sites(6, 40), rounds=2, effort=0.3)
    assert isinstance(case.record, Kept)
    alone = replace(case, record=Kept({2: case.record.by_round[2]}))
    seekers = (ByCandidates(),)
    first, second = (Reconstruct(rebuilders=(), seekers=seekers).findings(one, silent) for one in (case, alone))
    assert first[0].measures == second[0].measures


def test_noise_that_stays_hides_nothing_from_who_has_the_rows_and_two_packets() -> None:
    case = case_of(Blurred(AVERAGES, noise=3.0, fresh=0.0), clients=digit_sites(10, 60), rounds=3, effort=0.3)
    found = attacked(case)
    one, several = (value_of(found[name], WORDS).value for name in ("candidates", "candidates, rounds"))
    assert one < 0.8
    assert several > 0.9
