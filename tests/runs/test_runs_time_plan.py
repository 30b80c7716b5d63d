"""What is planned fits into the time there is, and more time never gives less."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fewfed.runs.time_plan import LAST_RESORTS, SHAPES, Cost, Plan, needed, plan_of

ALWAYS, ALONE = ["local", "base"], ["local", "pooled"]
SPECS = [*ALWAYS, "a", "b", "c", "d", "pooled"]
seconds_of_a_round = st.floats(0.001, 20)
cost = st.builds(Cost, st.floats(0, 5), seconds_of_a_round, seconds_of_a_round)
costs = st.tuples(*(cost for _ in SPECS)).map(lambda found: dict(zip(SPECS, found, strict=True)))


def planned(found: dict[str, Cost], seconds: float, at_once: int = 2, rounds: int | None = None) -> Plan:
    return plan_of(found, ALWAYS, ALONE, "base", seconds=seconds, at_once=at_once, rounds=rounds)


@given(costs, st.floats(1, 5000), st.integers(1, 16))
def test_what_is_planned_fits_or_is_the_least_there_is(found: dict[str, Cost], seconds: float, at_once: int) -> None:
    plan = planned(found, seconds, at_once)
    least = LAST_RESORTS[-1].rounds
    assert needed(plan, found, 1, at_once) <= seconds or plan.rounds["base"] == least
    assert list(plan.rounds)[:2] == ALWAYS
    assert sorted([*plan.rounds, *plan.given_up]) == sorted(SPECS)


@given(costs, st.floats(1, 2000), st.floats(1, 10))
def test_more_time_gives_no_fewer_methods(found: dict[str, Cost], seconds: float, times: float) -> None:
    assert len(planned(found, seconds).rounds) <= len(planned(found, times * seconds).rounds)


@given(costs, st.floats(1, 2000))
def test_those_without_exchange_have_no_more_rounds_than_others(found: dict[str, Cost], seconds: float) -> None:
    plan = planned(found, seconds)
    assert all(1 <= rounds <= plan.rounds["base"] for rounds in plan.rounds.values())
    assert len({rounds for spec, rounds in plan.rounds.items() if spec not in ALONE}) == 1


@given(costs, st.floats(1, 2000), st.integers(1, 300))
def test_rounds_that_the_user_wants_are_kept_to(found: dict[str, Cost], seconds: float, rounds: int) -> None:
    assert planned(found, seconds, rounds=rounds).rounds["base"] == rounds


def test_with_all_the_time_in_the_world_everything_is_tried_at_its_best() -> None:
    plan = planned(dict.fromkeys(SPECS, Cost(1, 1, 1)), 1e9)
    assert (plan.rounds["base"], plan.settings, plan.given_up) == (SHAPES[0].rounds, SHAPES[0].settings, ())


def test_the_last_of_the_list_is_given_up_first() -> None:
    found = dict.fromkeys(SPECS, Cost(0, 1, 1))
    for seconds in (600, 400, 300, 250, 200):
        plan = planned(found, seconds)
        assert list(plan.given_up) == SPECS[len(plan.rounds) :]


def test_the_time_needed_is_that_of_two_machines_side_by_side() -> None:
    plan = Plan({"a": 11, "b": 1}, 1, ())
    found = {"a": Cost(1, 2, 0.5), "b": Cost(1, 2, 0.5)}  # 8 and 3 seconds
    assert needed(plan, found, 2, 1) == 1.25 * 22
    assert needed(plan, found, 2, 2) == 1.25 * (11 + 8)
