"""Every registered method keeps what every method promises. See README.md in this folder."""

from __future__ import annotations

from typing import Any

import pytest
from conformance_cases import every_method, subject

from fewfed.conformance.property import Property
from fewfed.conformance.reference import Reference
from fewfed.conformance.suite import CAREFUL, LEARNS, NEUTRAL, OF_A_RUN, WEIGHTS
from fewfed.methods.registry import choose, presets_of, registered
from fewfed.phase import Clock

pytestmark = pytest.mark.timeout(120)


def named(promise: Any) -> str:
    return str(promise.name)


@pytest.mark.parametrize("promise", OF_A_RUN, ids=named)
def test_of_a_run(reference: Reference, promise: Property) -> None:
    why_not = promise.holds(reference)
    assert why_not == reference.method.steps_differ * ("steps" in promise.name), "what does not apply is declared"


@pytest.mark.parametrize("spec", every_method())
def test_no_function_changes_what_a_client_is_given(spec: str) -> None:
    """How other executors notice it is tested in `test_engine_lending.py`."""
    assert CAREFUL.holds(subject(spec)) == ""


@pytest.mark.parametrize("spec", every_method())
def test_the_model_becomes_better_than_the_one_it_started_from(spec: str) -> None:
    examined = subject(spec)
    noisy = any(one.each != "row" for one in examined.method.mechanisms(Clock(0, 1, 1)))
    assert bool(LEARNS.holds(examined)) == noisy


@pytest.mark.thorough  # What executors do with weights is in test_engine_weighting.py.
@pytest.mark.parametrize("spec", every_method())
def test_clients_weigh_what_the_training_says(spec: str) -> None:
    assert WEIGHTS.holds(subject(spec)) == ""


def declared() -> list[str]:
    """Methods and released variants with neutral settings. Presets are left out: they change more than those undo."""
    found = []
    for name in registered():
        plain = choose(name).method
        specs = [name, *(f"{name}:{preset}" for preset in presets_of(name)[1:] if preset not in plain.presets)]
        found += [spec for spec in specs if choose(spec).method.neutral is not None]
    return found


@pytest.mark.parametrize("spec", declared())
def test_neutral_settings_leave_fedavg(spec: str) -> None:
    assert NEUTRAL.holds(subject(spec)) == ""
