"""Several rounds together: noise that stays is gone, what is sent anew is averaged, and nothing is made up."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attack_support import Sends, case_of, digit_sites, silent, value_of
from pretend_device import pretended
from recorded_run import Exchanged, Kept

from fewfed.methods.blurred import Blurred
from fewfed.methods.flea import FLea
from fewfed.methods.grouped import Grouped
from fewfed.privacy.attacks.case import Case, some
from fewfed.privacy.attacks.finding import Finding
from fewfed.privacy.attacks.over_rounds import ByRounds
from fewfed.privacy.attacks.pairs import Known, known_of
from fewfed.privacy.attacks.rebuilders import ByRidge
from fewfed.privacy.attacks.reconstruct import REBUILDERS, Reconstruct
from fewfed.privacy.attacks.series import Series, series_of

ROWS = FLea(share=0.5, decorrelate=0.0)
AVERAGES = Grouped(ROWS, k=5)


def attacked(case: Case) -> tuple[Finding, Finding]:
    """By the attacker of one round, and by the one of several."""
    found = {one.variant: one for one in Reconstruct(rebuilders=(ByRidge(), ByRounds())).findings(case, silent)}
    return found["ridge"], found["rounds"]


def explained(case: Case) -> tuple[float, float]:
    one, several = attacked(case)
    return value_of(one, "R2").value, value_of(several, "R2").value


def known(case: Case, most: int = 400) -> Known:
    (exchanged,) = case.with_rows()
    return known_of(case, exchanged, some(case.shared_rows(exchanged), most, case.seed))


def series(case: Case) -> Series:
    found = series_of(known(case), silent)
    assert isinstance(found, Series)
    return found


def with_rounds(case: Case, *rounds: int) -> Case:
    """The same case, of which only some rounds were recorded."""
    assert isinstance(case.record, Kept)
    return replace(case, record=Kept({round: case.record.by_round[round] for round in rounds}))


@pytest.mark.parametrize("method", [AVERAGES, ROWS], ids=["averages", "rows"])
def test_noise_that_stays_is_gone_from_two_packets(method: Grouped | FLea) -> None:
    case = case_of(Blurred(method, noise=3.0, fresh=0.0), clients=digit_sites(10, 40), rounds=3, effort=0.3)
    one, two = explained(with_rounds(case, 1, 3))
    assert one < 0.75
    assert two > 0.9
    assert two > one + 0.2


def test_noise_that_is_new_each_time_is_averaged_away() -> None:
    case = case_of(Blurred(ROWS, noise=3.0, fresh=1.0), clients=digit_sites(8, 40), rounds=4, effort=0.3)
    one, four = explained(case)
    assert four > one + 0.05


def test_what_one_round_gives_without_noise_several_give_too() -> None:
    one, several = explained(case_of(ROWS, clients=digit_sites(8, 40), rounds=2, effort=0.3))
    assert several > 0.98
    assert several >= one - 0.005


def test_groups_that_are_new_each_time_are_no_gain_and_no_loss() -> None:
    case = case_of(Grouped(ROWS, k=5, fresh=True), clients=digit_sites(10, 40), rounds=2, effort=0.3)
    one, several = attacked(case)
    assert value_of(several, "R2").value >= value_of(one, "R2").value - 0.005
    ridge, rounds = (value_of(each, "re-identified") for each in (one, several))
    assert rounds.low <= ridge.value <= rounds.high
    put_together = series(case)
    assert not torch.equal(put_together.learn[0].origins, put_together.learn[-1].origins)


def test_noise_alone_gives_nothing_in_however_many_rounds() -> None:
    case = case_of(Sends(signal=0.0, noise=1.0, labelled=False), clients=digit_sites(12, 40), rounds=3, effort=0.2)
    one, several = attacked(case)
    assert value_of(several, "R2").low < 0.02
    hits = value_of(several, "re-identified")
    assert hits.low <= (hits.chance or 0) <= hits.high
    assert "names are not hidden" in several.threat.who
    assert "only the model" not in one.threat.sees


def test_a_stand_in_keeps_what_stays_and_has_nobody_elses_noise() -> None:
    def noise(fresh: float) -> Series:
        blurred = Blurred(Sends(signal=1e-6), noise=1e6, fresh=fresh)
        return series(case_of(blurred, clients=digit_sites(6, 20), rounds=2, effort=0.1))

    stays, new = noise(0.0), noise(1.0)
    for found, alike in ((stays, True), (new, False)):
        for first, last in zip(
            (found.learn[0].sent, found.victims[0]), (found.learn[-1].sent, found.victims[-1]), strict=True
        ):
            same = torch.nn.functional.cosine_similarity(first, last)
            assert bool((same > 0.8).all()) if alike else bool((same.abs() < 0.8).all())
        for each in range(2):
            every = torch.cat([found.learn[each].sent, found.held[each].sent, found.victims[each]])
            assert float(torch.corrcoef(every).fill_diagonal_(0).abs().max()) < 0.8


def test_rows_are_put_together_by_sender_and_place() -> None:
    case = case_of(ROWS, clients=digit_sites(8, 20), rounds=4, cohort=5, effort=0.1)
    found, last = series(case), known(case)
    assert found.rounds[-1] == 4
    assert last.places is not None
    partly = 0
    for column, round in enumerate(found.rounds[:-1]):
        (exchanged,) = (one for one in case.record.exchanges(round) if one.phase == "share")
        for row, (client, place) in enumerate(last.places.tolist()):
            assert bool(found.there[row, column]) == (client in exchanged.packets)
            if client in exchanged.packets:
                sent = exchanged.packets[client].arrays["features"][place].flatten()
                assert torch.equal(found.victims[column][row], sent)
            partly += client not in exchanged.packets
    assert partly
    assert sorted(torch.cat([rows for _, rows in found.sets()]).tolist()) == list(range(len(last.victims)))


def test_sites_that_were_there_in_different_rounds_are_each_attacked_with_theirs() -> None:
    case = case_of(Blurred(AVERAGES, noise=3.0, fresh=0.0), clients=digit_sites(10, 40), rounds=3, cohort=7, effort=0.2)
    assert len(list(series(case).sets())) > 1
    one, several = explained(case)
    assert several > one + 0.1


def test_it_finds_the_same_on_another_device() -> None:
    case = case_of(Blurred(AVERAGES, noise=1.0, fresh=0.5), clients=digit_sites(6, 40), rounds=3, cohort=4, effort=0.05)
    _, here = attacked(case)
    with pretended() as away:
        _, there = attacked(replace(case, device=away))
    assert [one.what for one in there.measures] == [one.what for one in here.measures]
    for one, like in zip(there.measures, here.measures, strict=True):
        assert one.value == pytest.approx(like.value, rel=1e-3, abs=1e-3)


def test_it_says_why_it_does_not_apply() -> None:
    case = case_of(ROWS, clients=digit_sites(6, 20), rounds=2, effort=0.1)
    last = known(case)
    assert "only one round" in str(series_of(known(with_rounds(case, 2)), silent))
    assert "who sent which" in str(series_of(replace(last, places=None), silent))
    assert isinstance(case.record, Kept)
    others = [_without_senders(one) for one in case.record.by_round[1]]
    strangers = replace(case, record=Kept({1: others, 2: case.record.by_round[2]}))
    assert "no site that sent rows in round 2" in str(series_of(known(strangers), silent))
    other_rows = [_other_labels(one) for one in case.record.by_round[1]]
    moved = replace(case, record=Kept({1: other_rows, 2: case.record.by_round[2]}))
    assert "with the same labels" in str(series_of(known(moved), silent))
    _, finding = attacked(with_rounds(case, 2))
    assert not finding.measures
    assert finding.note.startswith("not tried: only one round")
    assert "rounds" in {one.name for one in REBUILDERS}


def _without_senders(one: Exchanged) -> Exchanged:
    return replace(one, packets={}, personal={})


def _other_labels(one: Exchanged) -> Exchanged:
    packets = {
        client: type(packet)(
            packet.round,
            packet.phase,
            packet.sender,
            packet.weight,
            {name: (value + 1) % 10 if name == "labels" else value for name, value in packet.arrays.items()},
            packet.metrics,
        )
        for client, packet in one.packets.items()
    }
    return replace(one, packets=packets)
