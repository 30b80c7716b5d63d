"""Two clients with quadratic losses: methods reach the known common optimum, FedAvg its own fixed point."""

from __future__ import annotations

import pytest
from conformance_cases import every_spec, subject

from fewfed.conformance.quadratics import (
    OPTIMUM,
    STEPS,
    TOLERANCE,
    aims_at_the_optimum,
    corrects_drift_as_it_says,
    does_not_fit,
    fedavg_fixed_point,
    quadratic_job,
    walk,
)
from fewfed.methods.registry import choose


def global_methods() -> list[str]:
    """Methods that learn one model and take real targets and a network of one layer."""
    return [spec for spec in every_spec() if not does_not_fit(choose(spec).method)]


@pytest.mark.parametrize("spec", global_methods())
def test_one_local_step_reaches_the_common_optimum_unless_a_method_aims_elsewhere(spec: str) -> None:
    assert aims_at_the_optimum(subject(spec)) == choose(spec).method.another_aim


def test_methods_with_another_aim_are_few() -> None:
    assert {choose(spec).method.name for spec in global_methods() if choose(spec).method.another_aim} == {
        "central-dp",
        "dp",
        "fedfv",
        "fedharmo",
        "fedrobust",
        "moex",
    }


@pytest.mark.parametrize("spec", [spec for spec in global_methods() if choose(spec).method.corrects_drift])
def test_methods_that_correct_drift_reach_it_with_many_local_steps(spec: str) -> None:
    assert corrects_drift_as_it_says(subject(spec)) == ""


def test_fedavg_with_many_local_steps_settles_at_its_own_fixed_point() -> None:
    goal = fedavg_fixed_point(STEPS)
    assert abs(goal - OPTIMUM) > 4 * TOLERANCE, "the two ends must be told apart"
    assert walk(quadratic_job(choose("fedavg").method, steps=STEPS), goal, tolerance=1e-4).arrived


@pytest.mark.parametrize("sizes", [(10, 10), (30, 10), (2, 18)])
@pytest.mark.parametrize("steps", [1, 5])
def test_fedavg_weights_clients_by_their_samples(sizes: tuple[int, int], steps: int) -> None:
    job = quadratic_job(choose("fedavg").method, steps, sizes)
    assert walk(job, fedavg_fixed_point(steps, sizes), tolerance=1e-4).arrived


def test_with_one_step_the_fixed_point_is_the_optimum() -> None:
    assert fedavg_fixed_point(1) == pytest.approx(OPTIMUM)
