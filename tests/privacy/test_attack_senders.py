"""Marks are seen and senders known where there is something to see, and guessed where there is not."""

from __future__ import annotations

import torch
from attack_support import Sends, case_of, digit_sites, silent
from recorded_run import Exchanged, Kept

from fewfed.conformance.clients import digits
from fewfed.data.federation import GeneratedFederation
from fewfed.privacy.attacks.case import Case
from fewfed.privacy.attacks.context import Context
from fewfed.privacy.attacks.finding import Finding
from fewfed.privacy.attacks.property import Property, _groups


def variants(found: list[Finding]) -> dict[str, Finding]:
    return {one.variant: one for one in found}


def test_a_mark_is_seen_in_rows_that_keep_it() -> None:
    found = variants(Context().findings(case_of(Sends(), clients=digit_sites(6, 40)), silent))
    for finding in found.values():
        assert len(finding.measures) >= 4
        last = finding.measures[-1]
        assert last.value > 0.95
        assert last.raw is not None
        assert last.raw > 0.95
        assert finding.measures[0].value <= last.value + 0.05, "more examples do not make it harder"
        assert last.chance == 0.5


def test_a_mark_is_not_seen_in_noise() -> None:
    used = case_of(Sends(signal=0.0, noise=1.0), clients=digit_sites(6, 40))
    for finding in Context().findings(used, silent):
        for measure in finding.measures:
            # Ten numbers, each outside of its interval once in twenty times: four deviations for all of them.
            assert abs(measure.value - 0.5) < 4 * 0.5 / measure.rows**0.5
            assert (measure.raw or 0) > 0.5 or "10 rows" in measure.what


def test_averages_of_marked_rows_are_of_rows_that_all_have_the_mark() -> None:
    found = variants(Context().findings(case_of(Sends(group=5, stop=0), clients=digit_sites(6, 40)), silent))
    assert found["ridge"].measures[-1].value > 0.95


def test_there_is_no_mark_for_tables() -> None:
    used = case_of(Sends(stop=0), clients=digit_sites(4, 20))
    flat = GeneratedFederation(1, used.job.federation.examples, used.held, 10)
    flat.test = type(used.held)(used.held.x.flatten(1), used.held.y)
    other = Case(type(used.job)(**{**used.job.__dict__, "federation": flat}), 1, used.record)
    assert "no places" in Context().why_not(other)


def sites_that_differ(shift: float, sites: int = 4) -> GeneratedFederation:
    """Sites whose pictures are darker by some amount, all with the same classes."""
    train, test = digits()
    rows = [train.rows(torch.arange(site, 40 * sites, sites)) for site in range(sites)]
    moved = [type(one)(one.x + shift * site, one.y) for site, one in enumerate(rows)]
    return GeneratedFederation(sites, lambda site: moved[site], test, 10)


def test_the_sender_is_known_where_sites_differ_and_guessed_where_they_do_not() -> None:
    different = variants(Property().findings(case_of(Sends(), clients=sites_that_differ(0.3)), silent))
    alike = variants(Property().findings(case_of(Sends(), clients=sites_that_differ(0.0)), silent))
    known, guessed = different["rows"].measures[0], alike["rows"].measures[0]
    assert known.value > 0.9
    assert known.chance == guessed.chance == 0.25
    assert guessed.low <= 0.25 <= guessed.high
    labels = different["labels"].measures[0]
    assert labels.low <= 0.3, "labels are the same everywhere"


def test_labels_alone_tell_sites_with_other_classes() -> None:
    found = variants(Property().findings(case_of(Sends(), clients=digit_sites(6, 40)), silent))
    assert found["labels"].measures[0].low > 2 / 6
    assert found["rows"].measures[0].value >= found["labels"].measures[0].value - 0.05
    assert "labels" not in variants(
        Property().findings(case_of(Sends(labelled=False), clients=digit_sites(6, 40)), silent)
    )


def test_copies_of_a_row_are_not_learnt_from_and_tested_on_at_once() -> None:
    assert _groups(torch.tensor([[0], [0], [1], [2]])).tolist() == [0, 0, 2, 3]
    assert _groups(torch.tensor([[0, 1], [2, 3], [1, 2], [4, -1]])).tolist() == [0, 0, 0, 3]
    noise = case_of("fedfed", {"distil_rounds": 1, "noises": (5.0, 5.0)}, clients=sites_that_differ(0.0), rounds=2)
    found = variants(Property().findings(noise, silent))["rows"].measures[0]
    assert found.low <= 0.25


def test_one_site_is_no_question() -> None:
    used = case_of(Sends(), clients=digit_sites(4, 20), cohort=1)
    assert "two sites" in Property().why_not(used)
    few = case_of(Sends(), clients=digit_sites(4, 2))
    assert "two sites" in Property().why_not(few)
    (only,) = used.with_rows()
    empty = Exchanged(only.round, only.phase, only.broadcast, {}, {})
    assert "no recorded round" in Property().why_not(Case(used.job, 1, Kept({1: [empty]})))
