"""Known answers: from what loses nothing everything is had, from noise nothing, from averages less than from rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from attack_support import Sends, case_of, digit_sites, invertible, silent, value_of
from torch import Tensor

from fewfed.methods.flea import FLea
from fewfed.methods.noised import Noised
from fewfed.privacy.attacks import pairs
from fewfed.privacy.attacks.attack import Tell
from fewfed.privacy.attacks.case import Case, some
from fewfed.privacy.attacks.finding import Finding, Threat
from fewfed.privacy.attacks.optimised import ByOptimisation, sending_of
from fewfed.privacy.attacks.pairs import Known, Pairs, known_of
from fewfed.privacy.attacks.rebuilders import ByConvolutions, ByMinimalDecoder, ByRidge, Rebuilder
from fewfed.privacy.attacks.reconstruct import Reconstruct
from fewfed.privacy.attacks.substitute import BySubstitute

TOLD = (ByRidge(), ByMinimalDecoder(), ByConvolutions(), ByOptimisation())
SITES = 12


def attacked(case: Case, *rebuilders: Rebuilder) -> dict[str, Finding]:
    found = Reconstruct(rebuilders=rebuilders, seekers=()).findings(case, silent)
    return {one.variant: one for one in found}


def case(effort: float = 0.4, **values: object) -> Case:
    return case_of(Sends(**values), clients=digit_sites(SITES, 40), net=invertible(), effort=effort)  # type: ignore[arg-type]


def test_from_an_invertible_cut_everything_is_rebuilt() -> None:
    found = attacked(case(), ByRidge(), ByConvolutions(), ByOptimisation())
    for finding in found.values():
        assert value_of(finding, "R2").value > 0.99, finding.variant
        assert value_of(finding, "re-identified").value == 1.0, finding.variant
        assert value_of(finding, "SSIM").value > 0.99, finding.variant
        assert finding.picture.startswith(b"\x89PNG")


def test_from_noise_alone_nothing_is_rebuilt() -> None:
    found = attacked(case(0.2, signal=0.0, noise=1.0, labelled=False), *TOLD, BySubstitute())
    for finding in found.values():
        if not finding.measures:
            assert finding.variant == "inversion"
            assert "no stage" in finding.note
            continue
        for hits in (one for one in finding.measures if one.what.startswith("re-identified")):
            chance = hits.chance or 0
            # Several attackers, each outside of its interval once in twenty times: four deviations for all of them.
            assert abs(hits.value - chance) <= 4 * (chance / hits.rows) ** 0.5, finding.variant
        assert value_of(finding, "R2").low < 0.02, finding.variant
    ridge = value_of(found["ridge"], "re-identified")
    assert ridge.low <= (ridge.chance or 0) <= ridge.high
    assert len(found) == 5


def test_rows_sent_as_they_are_are_had_as_they_are() -> None:
    found = attacked(case(0.2, stop=0), ByRidge(), ByConvolutions(), ByOptimisation())
    for finding in found.values():
        hits, error = value_of(finding, "re-identified"), value_of(finding, "mean squared error")
        assert hits.value == hits.raw == 1.0
        assert error.value < 1e-4 * (error.chance or 0)
        assert error.raw == 0.0


def test_averages_of_five_give_less_than_single_rows() -> None:
    clients = digit_sites(SITES, 40)
    alone, grouped = (case_of(Sends(group=group), clients=clients, effort=0.4) for group in (1, 5))
    one, five = attacked(alone, ByRidge())["ridge"], attacked(grouped, ByRidge())["ridge"]
    single, mean = value_of(one, "re-identified"), value_of(five, "re-identified")
    assert single.value > 0.99
    assert mean.high < single.low
    assert mean.chance == pytest.approx(5 * (single.chance or 0))
    every, single_rows = value_of(five, "R2"), value_of(five, "R2 of single rows")
    assert single_rows.high < every.low, "the average is had, single rows are not"
    assert single_rows.value > 0.3, "and yet much of them is"
    likely = value_of(five, f"re-identified among {SITES * 40}, the attacker's way")
    assert likely.value >= mean.value, "who knows how averages come about finds more than who takes the nearest row"
    assert mean.low > (mean.chance or 0), "averages of five are no protection: ridge finds far more than guessing does"


@pytest.mark.parametrize(
    ("told", "defence"),
    [
        (ByRidge(), {"noise": 1.0}),
        (ByRidge(), {"group": 4}),
        (ByOptimisation(), {"noise": 1.0}),
        (ByOptimisation(), {"group": 4}),
        (ByOptimisation(), {"noise": 0.5, "group": 2}),
        (ByConvolutions(), {"noise": 0.5, "group": 2}),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "-".join(value),
)
def test_an_attacker_told_of_the_defence_is_not_weaker_than_one_that_is_not(
    told: Rebuilder, defence: dict[str, float]
) -> None:
    used = case_of(Sends(**defence), clients=digit_sites(SITES, 40), net=invertible(), effort=0.3)  # type: ignore[arg-type]
    found = attacked(used, told, _Untold(told))
    informed, naive = (value_of(found[name], "R2") for name in (told.name, "untold"))
    assert informed.value >= naive.value - 0.01
    assert "noise" not in defence or informed.value > naive.value + 0.5, "against noise it is worth much to know of it"
    hits, blind = (most_hits(found[name]) for name in (told.name, "untold"))
    assert hits >= blind - 0.02


def most_hits(finding: Finding) -> float:
    return max(one.value for one in finding.measures if one.what.startswith("re-identified"))


@dataclass(frozen=True)
class _Untold:
    """The same attacker, that takes what is sent for features of single rows without noise."""

    told: Rebuilder
    name: str = "untold"
    what: str = "believes that nothing is defended"
    has_pairs: bool = True

    @property
    def threat(self) -> Threat:
        return self.told.threat

    def rebuild(self, known: Known, tell: Tell) -> Tensor | str:
        plain = replace(known.case.job, method=Sends())
        believed = replace(known.case, job=plain)
        exchanged = known.exchanged
        victims = some(known.case.shared_rows(exchanged), len(known.victims), 0)
        other = known_of(believed, exchanged, victims)
        return self.told.rebuild(replace(other, victims=known.victims, labels=known.labels), tell)


def test_without_the_model_a_substitute_still_finds_rows() -> None:
    used = case_of(Sends(), clients=digit_sites(SITES, 40), effort=0.3)
    finding = attacked(used, BySubstitute())["substitute"]
    hits = value_of(finding, "re-identified")
    assert hits.low > 20 * (hits.chance or 0)
    assert not [one for one in finding.measures if "way" in one.what], "it has no pairs to learn that from"
    assert "neither the model" in finding.threat.holds


def test_the_substitute_reads_neither_model_nor_method(monkeypatch: pytest.MonkeyPatch) -> None:
    used = case_of(Sends(), clients=digit_sites(4, 40), effort=0.1)
    (exchanged,) = used.with_rows()
    known = known_of(used, exchanged, used.shared_rows(exchanged))
    blind = replace(known, exchanged=None, phase=None, learn=None, held=None)  # type: ignore[arg-type]
    monkeypatch.setattr(pairs, "imitations", None)
    assert BySubstitute().rebuild(blind, silent).shape == (len(known.victims), 64)  # type: ignore[union-attr]


def test_the_stage_that_sends_is_found_from_numbers() -> None:
    for stop, noise, group in ((1, 0.0, 1), (2, 0.05, 1), (1, 0.1, 3), (0, 0.0, 1)):
        used = case_of(Sends(stop=stop, noise=noise, group=group), clients=digit_sites(4, 40), effort=0.2)
        (exchanged,) = used.with_rows()
        found = sending_of(known_of(used, exchanged, used.shared_rows(exchanged)))
        assert found is not None
        assert found.stop == stop
        assert found.gain == pytest.approx(1, abs=0.05)
        if noise > 0.05:
            assert found.noise == pytest.approx(noise**2, rel=0.1)


def test_the_bound_is_below_every_error_that_is_measured() -> None:
    used = case_of(Sends(noise=0.5), clients=digit_sites(SITES, 40), net=invertible(), effort=0.3)
    found = attacked(used, ByRidge(), ByOptimisation())
    errors = [value_of(one, "mean squared error").value for one in found.values()]
    bounds = {value_of(one, "no attacker").value for one in found.values()}
    assert len(bounds) == 1
    assert 0 < min(bounds) <= min(errors)


def test_it_does_not_apply_where_no_rows_are_sent_and_says_so() -> None:
    attack = Reconstruct()
    assert "no recorded round" in attack.why_not(case_of("fedavg"))
    assert attack.why_not(case_of(Sends(), clients=digit_sites(4, 20))) == ""


def test_the_rows_of_a_case_are_the_clients_own() -> None:
    used = case_of("flea", {"share": 0.5}, clients=digit_sites(5, 20), cohort=3)
    (exchanged,) = used.with_rows()
    rows = used.shared_rows(exchanged)
    assert len(rows.rows) == 100, "all clients' rows are candidates, also of those that sent nothing"
    expected = used.job.net.apply(exchanged.broadcast["model"], rows.sources, stop=1, train=False)
    assert torch.allclose(rows.sent, expected, atol=1e-5)
    assert sum(len(one) for one in used.of_sites(exchanged).values()) == len(rows) == 30


@pytest.mark.parametrize("group", [1, 6])
def test_no_two_clients_that_an_attacker_plays_draw_the_same_noise(group: int) -> None:
    """Else a penalty is chosen as if noise were known, which that of real clients is not: too small a one. Groups of
    six are of one class each, for which clients of each class are played apart."""
    used = case_of(Sends(group=group, signal=0.0, noise=1.0), clients=digit_sites(SITES, 20), effort=0.2)
    (exchanged,) = used.with_rows()
    known = known_of(used, exchanged, used.shared_rows(exchanged))
    every = torch.cat([known.learn.sent, known.held.sent, known.victims])
    alike = torch.corrcoef(every).fill_diagonal_(0).abs()
    assert len(known.held) >= 10
    assert float(alike.max()) < 0.8, "128 numbers each: rows of one noise are correlated with 1"


def test_pairs_of_groups_are_found_where_ordinary_clients_would_send_none() -> None:
    used = case_of(Sends(group=6), clients=digit_sites(SITES, 20), effort=0.2)
    (exchanged,) = used.with_rows()
    found = pairs.imitations(used, exchanged, used.held, 200)
    assert len(found) >= 50
    labels = used.held.y[found.origins]
    assert bool((labels == labels[:, :1]).all())
    made = Pairs.of(found, torch.device("cpu"))
    assert made.behind == 6
    assert torch.allclose(made.inputs, used.held.x[found.origins].mean(1).flatten(1), atol=1e-6)


def test_ridge_regression_does_not_take_noise_for_something_said() -> None:
    """An attacker that learns from rows without the noise, by normal equations of its own and with every penalty tried
    on the sites' rows themselves, is no better."""
    method = Noised(FLea(share=0.5, decorrelate=0.0), clip=20.0, sigma=0.05)
    used = case_of(method, clients=digit_sites(12, 60), effort=0.5)
    (exchanged,) = used.with_rows()
    victims = used.shared_rows(exchanged)
    own = used.held.rows(torch.arange(288))

    def features(x: Tensor) -> Tensor:
        short = used.job.net.apply(exchanged.broadcast["model"], x, stop=1, train=False).flatten(1).double()
        found: Tensor = short * (20.0 / short.norm(dim=1, keepdim=True)).clamp(max=1.0)
        return found

    assert victims.sent[0].numel() == features(own.x[:1]).shape[1]
    z, x = features(own.x), own.x.flatten(1).double()
    a, b = z - z.mean(0), x - x.mean(0)
    sent, truth = victims.sent.flatten(1).double() - z.mean(0), victims.sources.flatten(1).double()
    blind = (truth - x.mean(0)).square().sum()
    found = []
    for penalty in (1.0, 10.0, 100.0, 1000.0, 10_000.0):
        rebuilt = x.mean(0) + sent @ a.T @ torch.linalg.solve(a @ a.T + penalty * torch.eye(len(a)).double(), b)
        found.append(float(1 - (truth - rebuilt).square().sum() / blind))
    assert value_of(attacked(used, ByRidge())["ridge"], "R2").value > max(found) - 0.03
