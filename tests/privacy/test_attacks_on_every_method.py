"""Every attack on every method: findings with their threat, interval and chance, or a sentence why there are none."""

from __future__ import annotations

import math

import pytest
from recorded_run import recorded

from fewfed.methods.registry import registered
from fewfed.privacy.attacks.gradient import Gradient
from fewfed.privacy.attacks.information import Information
from fewfed.privacy.attacks.inversion import Inversion
from fewfed.privacy.attacks.labels import Labels
from fewfed.privacy.attacks.membership import Membership
from support import digits_federation, job_of

ATTACKS = (Membership(), Gradient(), Labels(), Inversion(), Information())
SOME = ("fedavg", "flair", "sem(flea)")


def attack_all(spec: str) -> set[str]:
    case = recorded(job_of(spec, digits_federation(5, 9), training={"epochs": 2}), rounds=2, cohort=4, effort=0.02)
    applied = set()
    for attack in ATTACKS:
        heard: list[str] = []
        if attack.why_not(case):
            assert attack.why_not(case).strip()
            continue
        for found in attack.findings(case, heard.append):
            applied.add(attack.name)
            assert found.attack == attack.name
            assert found.threat.who
            assert found.threat.sees
            assert found.threat.holds
            assert 1 <= found.round <= 2
            for measure in found.measures:
                assert all(map(math.isfinite, (measure.value, measure.low, measure.high))), measure
                assert measure.low - 1e-9 <= measure.value <= measure.high + 1e-9, measure
                assert measure.rows > 0
                assert measure.chance is not None
        assert heard
    return applied


@pytest.mark.parametrize("spec", SOME)
def test_attacks_on_some_methods(spec: str) -> None:
    assert "labels" in attack_all(spec)


@pytest.mark.thorough
@pytest.mark.parametrize("spec", [name for name in registered() if name not in SOME])
def test_attacks_on_all_other_methods(spec: str) -> None:
    attack_all(spec)
