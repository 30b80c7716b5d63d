"""Several rounds together: averaging by its closed form, evidence by enumeration, and no loss where one is enough."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from attack_support import case_of, digit_sites, silent, value_of
from torch import Tensor

from fewfed.privacy.attacks import joint, rounds
from fewfed.privacy.attacks.matching import Directions, Likeness
from fewfed.privacy.attacks.opening import _only
from fewfed.privacy.attacks.reconstruct import Reconstruct


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


@pytest.mark.parametrize("shuffled", [False, True])
def test_noise_that_is_drawn_anew_averages_out(shuffled: bool) -> None:
    """The error of R rounds is that of the mean of R: 1/(1/spread + R/noise) for normal numbers, also where the
    attacker does not know which rows belong together."""
    columns, noise, own = 40, 0.5, normal(4000, 40, seed=0)
    along = Directions.of(own, columns)
    blur = joint.Blur.of(own + noise**0.5 * normal(4000, columns, seed=1), own, along)
    truth = normal(60, columns, seed=2)
    sent = [truth + noise**0.5 * normal(60, columns, seed=3 + number) for number in range(8)]
    if shuffled:
        sent[1:] = [rows[torch.randperm(60, generator=torch.Generator().manual_seed(9))] for rows in sent[1:]]
    for count in (1, 2, 4, 8):
        found = joint.averaged(sent[0], blur, [(rows, blur) for rows in sent[1:count]], 0.02 if shuffled else 0.99)
        error = float((found - truth).square().mean())
        assert error == pytest.approx(1 / (1 + count / noise), rel=0.1), count


def test_rows_of_other_sources_are_left_alone() -> None:
    # So many columns that no two of 900 pairs look alike by chance: with 40 some do, and are rightly half believed.
    own = normal(3000, 120, seed=0)
    blur = joint.Blur.of(own + 0.5 * normal(3000, 120, seed=1), own, Directions.of(own, 120))
    sent, other = normal(30, 120, seed=2), normal(30, 120, seed=3)
    alone, beside = joint.averaged(sent, blur, [], 0.03), joint.averaged(sent, blur, [(other, blur)], 0.03)
    assert torch.allclose(alone, beside, atol=0.01)


def test_the_odds_of_one_source_are_those_of_normal_pairs() -> None:
    own = normal(500, 3, seed=0)
    along = Directions.of(own, 3)
    one, two = (
        joint.Blur.of(slope * own + normal(500, 3, seed=seed), own, along) for slope, seed in ((1, 1), (0.5, 2))
    )
    u, v = normal(4, 3, seed=3), normal(5, 3, seed=4)
    found = joint.same(u, one, v, two)
    for i in range(4):
        for j in range(5):
            expected = 0.0
            for axis in range(3):
                a, b, spread = one.slope[axis], two.slope[axis], one.spread[axis]
                va, vb = a * a * spread + one.noise[axis], b * b * spread + two.noise[axis]
                covariance = torch.stack([va, a * b * spread, a * b * spread, vb]).reshape(2, 2)
                point = torch.stack([u[i, axis], v[j, axis]])
                zero = torch.zeros(2, dtype=torch.double)
                together = torch.distributions.MultivariateNormal(zero, covariance)
                apart = torch.distributions.MultivariateNormal(zero, torch.diag(torch.stack([va, vb])))
                expected += float(together.log_prob(point) - apart.log_prob(point))
            assert float(found[i, j]) == pytest.approx(expected, abs=1e-8)


def test_ratios_are_those_of_two_normal_densities() -> None:
    rows = normal(200, 4, seed=0)
    likeness = Likeness.of(0.5 * rows + 0.3 * normal(200, 4, seed=1), torch.arange(200)[:, None], Directions.of(rows))
    guess, x = normal(3, 4, seed=2), normal(6, 4, seed=3)
    found = joint.ratios(likeness, guess, x)
    u, c = likeness.along.coordinates(guess), likeness.along.coordinates(x)
    inside = torch.distributions.Normal((likeness.slope * u)[:, None], likeness.rest.sqrt())
    anyhow = torch.distributions.Normal(torch.zeros(4, dtype=torch.double), likeness.spread.sqrt())
    assert torch.allclose(found, (inside.log_prob(c[None]) - anyhow.log_prob(c)[None]).sum(2), atol=1e-8)


def test_evidence_is_the_mean_over_all_that_may_have_happened() -> None:
    ratio = normal(3, 5, seed=0)
    for inside in (0.3, 1.0):
        expected = [math.log(1 - inside + inside * float(ratio[:, each].exp().mean())) for each in range(5)]
        assert joint.evidence(ratio, inside).tolist() == pytest.approx(expected)


def test_single_rows_without_noise_are_found_as_by_one_round() -> None:
    used = case_of("flea", {"share": 0.5}, clients=digit_sites(8, 40), rounds=3, cohort=8, effort=0.3)
    (found,) = rounds.findings(used, "reconstruct", silent)
    for what in ("re-identified among 320", "R2"):
        together, alone = (value_of(found, f"{what}, by {words}") for words in ("all rounds", "its last round alone"))
        assert together.value >= alone.value - 0.02
    assert value_of(found, "re-identified among 320, by all rounds").low > 0.9
    for one in found.measures:
        assert one.low - 1e-9 <= one.value <= one.high + 1e-9
        assert one.chance is not None
        assert one.value > one.chance


def test_it_takes_two_rounds() -> None:
    used = case_of("flea", {"share": 0.5}, clients=digit_sites(4, 40), rounds=2, cohort=4, effort=0.2)
    assert rounds.findings(replace(used, record=_only(used.record, (2,))), "reconstruct", silent) == []
    assert rounds.findings(case_of("fedavg", clients=digit_sites(4, 20), rounds=2), "reconstruct", silent) == []
    assert [one.variant for one in Reconstruct(rebuilders=()).findings(used, silent)] == ["rounds"]
