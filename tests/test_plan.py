from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewfed.plan import Plan, Random
from support import job_of, run

COUNTS = st.integers(1, 70)
BATCHES = st.integers(1, 40)
EPOCHS = st.integers(1, 4)


def rows_of(plan: Plan, count: int, epochs: int, *, round: int = 0, phase: str = "train", client: int = 0) -> Any:
    return [batch.tolist() for batch in plan.batches(round, phase, client, count, epochs)]


@given(COUNTS, BATCHES, EPOCHS)
def test_fill_makes_every_batch_full_and_uses_rows_evenly(count: int, batch: int, epochs: int) -> None:
    plan = Plan(0, batch)
    batches = rows_of(plan, count, epochs)
    per_epoch = -(-count // batch)
    assert len(batches) == plan.steps(count, epochs) == epochs * per_epoch
    assert {len(rows) for rows in batches} == {min(batch, count)}
    assert {row for rows in batches[:per_epoch] for row in rows} == set(range(count))
    uses = Counter(row for rows in batches for row in rows)
    assert max(uses.values()) - min(uses.values()) <= 1


@given(COUNTS, BATCHES, EPOCHS)
def test_partial_passes_over_every_row_once_an_epoch(count: int, batch: int, epochs: int) -> None:
    plan = Plan(0, batch, "partial")
    batches = rows_of(plan, count, epochs)
    per_epoch = -(-count // batch)
    assert len(batches) == plan.steps(count, epochs) == epochs * per_epoch
    for epoch in range(epochs):
        parts = batches[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert sorted(row for rows in parts for row in rows) == list(range(count))
        assert [len(rows) for rows in parts[:-1]] == [batch] * (per_epoch - 1)


@given(COUNTS, BATCHES, EPOCHS)
def test_released_takes_one_draw_more_than_whole_batches(count: int, batch: int, epochs: int) -> None:
    plan = Plan(0, batch, "released")
    batches = rows_of(plan, count, epochs)
    assert len(batches) == plan.steps(count, epochs) == epochs * (count // batch + 1)
    passes: list[int] = []
    for rows in batches:
        passes += rows
        if len(passes) >= count:
            assert sorted(passes) == list(range(count))
            passes = []


def test_trap_20_a_multiple_of_the_batch_gives_two_draws_as_released_and_one_otherwise() -> None:
    assert [len(rows) for rows in rows_of(Plan(0, 64, "released"), 64, 1)] == [64, 64]
    assert [len(rows) for rows in rows_of(Plan(0, 64, "partial"), 64, 1)] == [64]
    assert [len(rows) for rows in rows_of(Plan(0, 64), 64, 1)] == [64]
    assert [len(rows) for rows in rows_of(Plan(0, 64, "released"), 70, 2)] == [64, 6, 64, 6]


@pytest.mark.parametrize("rule", ["fill", "partial", "released"])
def test_nothing_to_do_is_no_batch(rule: Any) -> None:
    assert Plan(0, 8, rule).batches(0, "train", 0, 0, 3) == []
    assert Plan(0, 8, rule).batches(0, "share", 0, 20, 0) == []


def test_batches_depend_on_seed_round_phase_and_client_alone() -> None:
    plan = Plan(3, 8)
    same = rows_of(plan, 30, 2, round=4, phase="train", client=5)
    rows_of(plan, 30, 2, round=1)
    torch.manual_seed(99)
    np.random.seed(99)
    assert rows_of(Plan(3, 8), 30, 2, round=4, phase="train", client=5) == same
    others = [
        rows_of(Plan(4, 8), 30, 2, round=4, phase="train", client=5),
        rows_of(plan, 30, 2, round=5, phase="train", client=5),
        rows_of(plan, 30, 2, round=4, phase="other", client=5),
        rows_of(plan, 30, 2, round=4, phase="train", client=6),
        rows_of(plan, 30, 2, round=5, phase="train", client=4),
        rows_of(plan, 30, 2, round=4, phase="train", client=-1),
    ]
    assert all(other != same for other in others)


def test_a_methods_draws_are_another_stream_than_the_batches() -> None:
    plan = Plan(0, 8)
    assert plan.random(0, "train", 0).permutation(30).tolist() != rows_of(replace(plan, batch=30), 30, 1)[0]
    assert torch.equal(plan.random(2, "train", 1).uniform(5), plan.random(2, "train", 1).uniform(5))
    assert torch.equal(plan.fixed(1, "rows").uniform(5), plan.fixed(1, "rows").uniform(5))
    assert not torch.equal(plan.fixed(1, "rows").uniform(5), plan.fixed(1, "noise").uniform(5))
    assert not torch.equal(plan.fixed(1, "rows").uniform(5), plan.fixed(2, "rows").uniform(5))


@given(st.integers(0, 50), st.integers(1, 60), st.data())
def test_a_cohort_has_distinct_clients(round: int, clients: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, clients))
    cohort = Plan(7, 8).cohort(round, clients, size)
    assert len(set(cohort)) == size
    assert set(cohort) <= set(range(clients))
    assert Plan(7, 64, "partial").cohort(round, clients, size) == cohort


def test_cohorts_are_uniform_over_clients() -> None:
    draws = 3000
    times = Counter(client for round in range(draws) for client in Plan(1, 8).cohort(round, 10, 3))
    expected, deviation = draws * 0.3, (draws * 0.3 * 0.7) ** 0.5
    assert all(abs(times[client] - expected) < 4 * deviation for client in range(10))


def test_every_method_of_a_seed_meets_the_same_cohorts() -> None:
    drawn = [[view.cohort for view in run(job_of(name), rounds=3).views] for name in ("fedavg", "flea", "local")]
    assert drawn[0] == drawn[1] == drawn[2]
    assert len({tuple(cohort) for cohort in drawn[0]}) > 1


def test_released_cohorts_are_those_of_the_released_log(flea_values: dict[str, Any]) -> None:
    values = flea_values["official_client_sampling"]
    np.random.seed(5)
    before = np.random.get_state()[1].copy()
    for seed in (0, 1):
        plan = Plan(seed, 8, sampling="released")
        assert plan.cohort(0, values["K"], values["m"]) == values["round0"]
    assert np.array_equal(np.random.get_state()[1], before)


def test_trap_23_directed_exposure_follows_its_closed_form(flea_values: dict[str, Any]) -> None:
    """Who has received features of whom once round t's clients got the buffer of round t−1's."""
    clients, size = 500, 50
    expected = dict(
        zip(
            flea_values["exposure_directed_expected"]["t"],
            flea_values["exposure_directed_expected"]["eps"],
            strict=True,
        )
    )
    for seed in range(3):
        plan = Plan(seed, 32)
        cohorts = [plan.cohort(round, clients, size) for round in range(100)]
        reached = np.zeros((clients, clients), bool)
        for t in range(1, 101):
            if t > 1:
                reached[np.ix_(cohorts[t - 2], cohorts[t - 1])] = True
            if t in expected:
                assert reached.mean() == pytest.approx(expected[t], abs=0.01)
    assert expected[50] == pytest.approx(0.39, abs=0.01)


def test_cycle_is_always_full_and_goes_through_everything_before_repeating() -> None:
    draws = Random(0, "x")
    seen = torch.cat([draws.cycle(7, 5) for _ in range(7)])
    assert len(seen) == 35
    for start in range(0, 35, 7):
        assert sorted(seen[start : start + 7].tolist()) == list(range(7))
    assert len(draws.cycle(2, 9)) == 9


def test_streams_of_one_object_do_not_disturb_each_other() -> None:
    draws = Random(0, "x")
    first = [draws.cycle(10, 4, "a"), draws.cycle(10, 4, "b"), draws.cycle(10, 2, "a"), draws.cycle(10, 6, "b")]
    assert sorted(torch.cat([first[0], first[2]]).tolist() + draws.cycle(10, 4, "a").tolist()) == list(range(10))
    assert sorted(torch.cat([first[1], first[3]]).tolist()) == list(range(10))


def test_loader_keeps_the_short_batch_of_each_pass() -> None:
    draws = Random(0, "x")
    assert [len(draws.loader(70, 64)) for _ in range(5)] == [64, 6, 64, 6, 64]


def test_subsets_are_distinct_without_replacement_only() -> None:
    assert len(set(Random(0, "s").choice(50, 50, replace=False).tolist())) == 50
    assert len(set(Random(0, "s").choice(50, 50, replace=True).tolist())) < 50


@pytest.mark.parametrize("a", [0.5, 2.0, 5.0])
def test_beta_draws_have_the_moments_of_the_distribution(a: float) -> None:
    drawn = Random(0, "beta").beta(a, 20000)
    assert drawn.dtype == torch.float32
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(drawn.var()) == pytest.approx(1 / (4 * (2 * a + 1)), rel=0.05)


def test_infinite_beta_is_one_half() -> None:
    assert Random(0, "beta").beta(float("inf"), 3).tolist() == [0.5] * 3


def test_uniform_normal_and_integers_have_their_ranges() -> None:
    draws = Random(0, "x")
    uniform, normal, integers = draws.uniform(50, 100), draws.normal(5000), draws.integers(4, 1000)
    assert uniform.shape == (50, 100)
    assert 0 <= float(uniform.min()) <= float(uniform.max()) < 1
    assert float(uniform.var()) == pytest.approx(1 / 12, rel=0.05)
    assert float(normal.mean()) == pytest.approx(0, abs=0.05)
    assert float(normal.std()) == pytest.approx(1, rel=0.05)
    assert set(integers.tolist()) == {0, 1, 2, 3}
    assert {uniform.dtype, normal.dtype} == {torch.float32}


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 100))
def test_normal_numbers_made_in_advance_are_those_drawn_one_by_one(sizes: list[int], made: int) -> None:
    ahead, plain, whole = Random(3, "x"), Random(3, "x"), Random(3, "x")
    ahead.make_normals(made)
    drawn = [ahead.normal(size) for size in sizes]
    assert all(torch.equal(a, plain.normal(size)) for a, size in zip(drawn, sizes, strict=True))
    assert torch.equal(torch.cat(drawn), whole.normal(sum(sizes)))


def test_noise_does_not_move_the_other_streams() -> None:
    with_noise, without = Random(0, "x"), Random(0, "x")
    with_noise.normal(7)
    assert torch.equal(with_noise.permutation(20), without.permutation(20))


def test_a_count_goes_on_and_leaves_the_numbers_drawn_as_they_are() -> None:
    plain, counted = Random(0, "x"), Random(0, "x")
    assert [counted.count() for _ in range(3)] == [0, 1, 2]
    assert torch.equal(plain.uniform(4), counted.uniform(4))
    assert torch.equal(plain.normal(4), counted.normal(4))


def test_noise_that_protects_is_of_the_seed_in_a_simulation_and_new_each_round() -> None:
    plan = Plan(3, 8)
    first = plan.protecting(0, "share", 4, "noise").normal(50)
    assert torch.equal(first, plan.protecting(0, "share", 4, "noise").normal(50))
    for other in (plan.protecting(1, "share", 4, "noise"), plan.protecting(0, "share", 5, "noise")):
        assert not torch.equal(first, other.normal(50))


def test_noise_of_the_operating_system_is_normal_and_never_the_same() -> None:
    random = Plan(3, 8, protection="system", dtype=torch.float64).protecting(0, "share", 4, "noise")
    drawn = random.normal(200_000)
    assert not torch.equal(drawn[:100], Plan(3, 8, protection="system").protecting(0, "share", 4, "noise").normal(100))
    assert abs(float(drawn.mean())) < 0.02
    for place, expected in ((-1.959964, 0.025), (0.0, 0.5), (1.0, 0.8413447)):
        assert abs(float((drawn < place).double().mean()) - expected) < 0.005
    assert torch.isfinite(drawn).all()
    uniform = random.uniform(100_000)
    assert float(uniform.min()) >= 0
    assert float(uniform.max()) <= 1
    with pytest.raises(NotImplementedError):
        random.permutation(3)
