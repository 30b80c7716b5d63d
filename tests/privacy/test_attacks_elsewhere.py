"""Attacks on another device than the host: nothing is left behind, and the numbers are the same."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from attack_support import case_of, digit_sites
from pretend_device import pretended

from fewfed.privacy.attacks.applicable import ATTACKS
from fewfed.privacy.attacks.case import Case
from fewfed.privacy.attacks.finding import Finding
from fewfed.privacy.attacks.registry import chosen


def test_the_pretended_device_notices_what_is_mixed() -> None:
    with pretended() as away:
        here, there = torch.arange(3.0), torch.tensor([1.0, 2.0, 3.0], device=away)
        with pytest.raises(RuntimeError, match="same device"):
            here + there
        assert (here.to(away) + there).cpu().tolist() == [1.0, 3.0, 5.0]
        there[0] = 7
        there += 1
        assert there.device == away
        assert there.cpu().tolist() == [8.0, 3.0, 4.0]


CASES = {
    "rows": lambda: case_of("flea", effort=0.02),
    "averages": lambda: case_of("grouped(flea)", {"k": 2}, effort=0.02),
    "rows as they are": lambda: case_of("feddata", effort=0.02),
    "models": lambda: case_of("fedavg", rounds=2, effort=0.02),
    "one step": lambda: case_of("fedavg", clients=digit_sites(4, 8), effort=0.02),
    "generators": lambda: case_of("flair", effort=0.02),
}


def _found(case: Case, kind: str) -> list[Finding]:
    (attack,) = chosen([kind])
    return [] if attack.why_not(case) else attack.findings(case, lambda _: None)


THOROUGH = ("averages", "rows as they are", "models")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] if name in THOROUGH else []) for name in CASES]
)
def test_an_attack_on_another_device_finds_the_same(name: str) -> None:
    case = CASES[name]()
    tried = 0
    for kind in ATTACKS:
        at_home = _found(case, kind)
        with pretended() as away:
            elsewhere = _found(dataclasses.replace(case, device=away), kind)
        assert [(one.variant, [each.what for each in one.measures]) for one in elsewhere] == [
            (one.variant, [each.what for each in one.measures]) for one in at_home
        ]
        for one, same in zip(elsewhere, at_home, strict=True):
            for each, like in zip(one.measures, same.measures, strict=True):
                tried += 1
                assert math.isclose(each.value, like.value, rel_tol=1e-3, abs_tol=1e-3) or math.isnan(like.value)
    assert tried
