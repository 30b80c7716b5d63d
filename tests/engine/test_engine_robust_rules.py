"""Every rule against an independent rewrite in NumPy, and what it promises about attackers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from robust_packets import CONTROL, MODEL, as_rows, combined, gathered, model, packets, phase_of

from fewfed import tree
from fewfed.engine.combine import Combiner
from fewfed.engine.packet import Packet
from fewfed.engine.robust.bound import Bound, bound_of
from fewfed.engine.robust.clipped import Clipped
from fewfed.engine.robust.defence import Defence
from fewfed.engine.robust.krum import Krum
from fewfed.engine.robust.median import Median
from fewfed.engine.robust.norm_bound import NormBound
from fewfed.engine.robust.rule import Rule, assumed
from fewfed.engine.robust.trimmed import Trimmed
from fewfed.errors import ConfigError, RunError
from fewfed.phase import Combine, Role, Upload
from fewfed.tree import Tree

UPLOADS = {**MODEL, **CONTROL}
RULES: list[Rule] = [Clipped(), Median(), Trimmed(0.2), Krum(0.2), Krum(0.2, many=True)]


def each_rule() -> Any:
    return pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


@st.composite
def cohorts(draw: Any, fewest: int = 5, most: int = 9) -> tuple[tuple[Packet, ...], Tree]:
    """Packets of some clients with random trees, and a broadcast of the same form."""
    seed = draw(st.integers(0, 2**32 - 1))
    count = draw(st.integers(fewest, most))
    shapes = draw(st.lists(st.sampled_from([(3,), (2, 2), (1,), (), (4, 1, 2)]), min_size=1, max_size=3))
    random = np.random.default_rng(seed)

    def one() -> Tree:
        params = {
            f"p{k}": torch.tensor(random.normal(size=shape), dtype=torch.float32) for k, shape in enumerate(shapes)
        }
        beside = {"var": torch.tensor(random.gamma(2, 100, 3), dtype=torch.float32)}
        return {
            "model": {"params": params, "buffers": beside},
            "control": {"c": torch.tensor(random.normal(size=4), dtype=torch.float32)},
        }

    weights = random.integers(1, 30, count).astype(float).tolist()
    return packets(*(one() for _ in range(count)), weights=weights), {"model": one()["model"]}


def numbers(sent: Sequence[Packet], name: str, part: str = "") -> np.ndarray:
    trees = [packet.arrays[name] for packet in sent]
    return as_rows([each[part] for each in trees] if part else trees)


def flat(value: Tree) -> np.ndarray:
    return as_rows([value])[0]


@given(cohorts())
def test_the_median_is_numpys(case: tuple[tuple[Packet, ...], Tree]) -> None:
    sent, shared = case
    found, _ = combined(Median(), sent, phase=phase_of(**UPLOADS), shared=shared)
    np.testing.assert_allclose(flat(found.values["model"]), np.median(numbers(sent, "model"), 0), rtol=1e-6)
    sums = len(sent) * np.median(numbers(sent, "control"), 0)
    np.testing.assert_allclose(flat(found.values["control"]), sums, rtol=1e-6)
    assert found.clients == tuple(range(len(sent)))


@given(cohorts(), st.integers(0, 2))
def test_the_trimmed_mean_is_a_loop_over_numbers(case: tuple[tuple[Packet, ...], Tree], cut: int) -> None:
    sent, shared = case
    found, _ = combined(Trimmed(float(cut)), sent, phase=phase_of(**UPLOADS), shared=shared)

    def mean(column: np.ndarray, weights: np.ndarray) -> float:
        order = sorted(range(len(column)), key=lambda k: column[k])[cut : len(column) - cut]
        return float(sum(column[k] * weights[k] for k in order) / sum(weights[k] for k in order))

    weights = np.array([packet.weight for packet in sent])
    expected = [mean(column, weights) for column in numbers(sent, "model").T]
    np.testing.assert_allclose(flat(found.values["model"]), expected, rtol=2e-6, atol=1e-7)
    sums = [len(sent) * mean(column, np.ones(len(sent))) for column in numbers(sent, "control").T]
    np.testing.assert_allclose(flat(found.values["control"]), sums, rtol=2e-6, atol=1e-6)


@given(cohorts())
def test_without_any_to_cut_off_the_trimmed_mean_is_what_is_declared(case: tuple[tuple[Packet, ...], Tree]) -> None:
    sent, shared = case
    found, _ = combined(Trimmed(0.0), sent, phase=phase_of(**UPLOADS), shared=shared)
    usual = Combiner(phase_of(**UPLOADS), 100)
    for packet in sent:
        usual.add(packet)
    for name in UPLOADS:
        np.testing.assert_allclose(flat(found.values[name]), flat(usual.finish().values[name]), rtol=2e-6, atol=1e-6)


def krum_by_hand(parts: Sequence[np.ndarray], bad: int) -> list[float]:
    """The score of every client, distance by distance."""
    count = len(parts[0])
    apart = np.zeros((count, count))
    for rows in parts:
        squares = np.array([[float(((a - b) ** 2).sum()) for b in rows] for a in rows])
        pairs = sorted(squares[i, j] for i in range(count) for j in range(i + 1, count))
        apart += squares / pairs[(len(pairs) - 1) // 2]
    return [sum(sorted(apart[i, j] for j in range(count) if j != i)[: count - bad - 2]) for i in range(count)]


@given(cohorts(7, 9), st.booleans())
def test_krum_takes_the_lowest_scores(case: tuple[tuple[Packet, ...], Tree], many: bool) -> None:
    sent, shared = case
    found, said = combined(Krum(2.0, many), sent, phase=phase_of(**UPLOADS), shared=shared)
    parts = [numbers(sent, "model", "params"), numbers(sent, "model", "buffers"), numbers(sent, "control")]
    scores = krum_by_hand(parts, 2)
    best = sorted(sorted(range(len(sent)), key=lambda k: scores[k])[: len(sent) - 2 if many else 1])
    assert list(found.clients) == best
    assert said.defended.not_chosen == tuple(k for k in range(len(sent)) if k not in best)
    weights = np.array([sent[k].weight for k in best])
    expected = (numbers(sent, "model")[best] * weights[:, None]).sum(0) / weights.sum()
    np.testing.assert_allclose(flat(found.values["model"]), expected, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(
        flat(found.values["control"]), numbers(sent, "control")[best].sum(0), rtol=2e-6, atol=1e-6
    )


def test_krum_picks_one_of_the_cluster() -> None:
    near = [[1.0, 1.0], [1.1, 0.9], [0.9, 1.1], [1.0, 1.05], [0.95, 1.0]]
    sent = packets(*({"model": model(each)} for each in (*near[:2], [50.0, 50.0], *near[2:], [-40.0, 3.0])))
    found, said = combined(Krum(2.0), sent)
    (chosen,) = found.clients
    assert chosen not in (2, 6)
    assert said.defended.not_chosen == tuple(k for k in range(7) if k != chosen)
    many, _ = combined(Krum(2.0, many=True), sent)
    assert many.clients == (0, 1, 3, 4, 5)
    np.testing.assert_allclose(flat(many.values["model"]), np.mean(near, 0), rtol=1e-6)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("spread", [0.0, 0.1])
@pytest.mark.parametrize("places", [(0, 1), (3, 6), (5, 6)])
def test_numbers_whose_squares_are_beyond_all_numbers_are_not_chosen(
    places: tuple[int, int], spread: float, many: bool
) -> None:
    """The honest may all be equal: then nobody but the attackers has a distance to measure others by."""
    honest = torch.linspace(-1, 1, 8, dtype=torch.float64)
    sent = [torch.tensor([1.5, -2.5], dtype=torch.float64) + spread * honest[place] for place in range(8)]
    for place, sign in zip(places, (1, -1), strict=True):
        sent[place] = torch.tensor([sign * 1.7e308, 1.7e308], dtype=torch.float64)
    found, combiner = combined(Krum(2, many=many), packets(*({"model": {"params": {"w": each}}} for each in sent)))
    assert set(places) <= set(combiner.defended.not_chosen)
    assert torch.allclose(found.values["model"]["params"]["w"], torch.tensor([1.5, -2.5]).double(), atol=0.1)


def test_one_client_far_off_does_not_take_the_precision_of_distances_between_the_others() -> None:
    """From a common origin the others would all seem equally far from each other."""
    near = [[0.001 * k, 0.0] for k in (0, 1, 2, 3, 40)]
    sent = packets(*({"model": model(each)} for each in ([3e15, 3e15], *near)))
    found, _ = combined(Krum(1.0), sent)
    assert found.clients in ((2,), (3,))


@given(cohorts(), st.sampled_from([Bound(1.0), Bound(0.5), Bound(1.3, is_relative=False)]))
def test_clipped_changes_are_what_numpy_makes_of_them(case: tuple[tuple[Packet, ...], Tree], bound: Bound) -> None:
    sent, shared = case
    found, said = combined(Clipped(bound), sent, phase=phase_of(**UPLOADS), shared=shared)
    weights = np.array([packet.weight for packet in sent])
    clipped: set[int] = set()

    def shorter(rows: np.ndarray, base: np.ndarray) -> np.ndarray:
        change = rows - base
        lengths = np.sqrt((change**2).sum(1))
        most = bound.value * sorted(lengths)[(len(lengths) - 1) // 2] if bound.is_relative else bound.value
        clipped.update(np.nonzero(lengths > most)[0].tolist())
        return base + change * np.minimum(1, most / lengths)[:, None]

    for part in ("params", "buffers"):
        rows = shorter(numbers(sent, "model", part), flat(shared["model"][part]))
        expected = (rows * weights[:, None]).sum(0) / weights.sum()
        np.testing.assert_allclose(flat(found.values["model"][part]), expected, rtol=1e-5, atol=1e-5)
    controls = shorter(numbers(sent, "control"), np.zeros(4))  # Nothing of that name was broadcast: it is a change.
    np.testing.assert_allclose(flat(found.values["control"]), controls.sum(0), rtol=1e-5, atol=1e-5)
    assert set(said.defended.clipped) == clipped


@given(cohorts())
def test_a_wide_bound_changes_no_bit(case: tuple[tuple[Packet, ...], Tree]) -> None:
    sent, shared = case
    phase = phase_of(**UPLOADS)
    wide = Bound(1e9, is_relative=False)
    found, said = combined(Defence(Clipped(wide), NormBound(wide)), sent, phase=phase, shared=shared)
    usual = Combiner(phase, 100)
    for packet in sent:
        usual.add(packet)
    expected = usual.finish()
    assert found.clients == expected.clients
    assert all(
        torch.equal(a, b)
        for (_, a), (_, b) in zip(tree.leaves(found.values), tree.leaves(expected.values), strict=True)
    )
    assert said.defended.as_json() == {}
    assert said.bytes == usual.bytes


@each_rule()
@settings(max_examples=25)
@given(case=cohorts(7, 9), seed=st.integers(0, 1000))
def test_the_order_of_clients_changes_nothing(rule: Rule, case: tuple[tuple[Packet, ...], Tree], seed: int) -> None:
    sent, shared = case
    mixed = list(sent)
    Random(seed).shuffle(mixed)
    one, _ = combined(rule, sent, phase=phase_of(**UPLOADS), shared=shared)
    other, _ = combined(rule, mixed, phase=phase_of(**UPLOADS), shared=shared)
    assert set(one.clients) == set(other.clients)
    for name in UPLOADS:
        np.testing.assert_allclose(flat(one.values[name]), flat(other.values[name]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", [Median(), Trimmed(0.25), Trimmed(1.0)])
@given(case=cohorts(3, 3), size=st.sampled_from([1e3, -1e9, 1e17]), weight=st.sampled_from([1.0, 1e6]))
def test_one_attacker_in_four_cannot_leave_the_honest_range(
    rule: Rule, case: tuple[tuple[Packet, ...], Tree], size: float, weight: float
) -> None:
    honest, shared = case
    bad = Packet(0, "train", 3, weight, tree.map(lambda leaf: torch.full_like(leaf, size), honest[0].arrays))
    found, _ = combined(rule, [*honest, bad], phase=phase_of(**UPLOADS), shared=shared)
    for name, times in (("model", 1), ("control", 4)):
        rows, value = numbers(honest, name), flat(found.values[name]) / times
        slack = 1e-6 * np.abs(rows).max() if times > 1 else 0.0  # A sum rounds once more.
        assert (value >= rows.min(0) - slack).all()
        assert (value <= rows.max(0) + slack).all()


def test_a_claimed_weight_has_no_say_in_the_median() -> None:
    sent = packets(*({"model": model([float(k)])} for k in range(5)), weights=[1, 1, 1, 1, 1e6])
    found, _ = combined(Median(), sent)
    assert found.values["model"]["params"]["w"].tolist() == [2.0]
    assert found.weights == (1, 1, 1, 1, 1e6)


def test_whole_numbers_are_the_lower_one_of_the_middle() -> None:
    sent = packets(*({"model": {"seen": torch.tensor([k, 9 - k])}} for k in (1, 2, 3, 2**62)))
    for rule in (Median(), Trimmed(1.0)):
        found, _ = combined(rule, sent)
        assert found.values["model"]["seen"].tolist() == [2, 6]
        assert found.values["model"]["seen"].dtype == torch.int64


def test_large_arrays_are_combined_in_pieces() -> None:
    random = torch.Generator().manual_seed(0)
    rows = [torch.randn(600_001, generator=random) for _ in range(5)]
    found, _ = combined(Median(), packets(*({"model": {"w": each}} for each in rows)))
    assert torch.equal(found.values["model"]["w"], torch.stack(rows).median(0).values)


def test_a_rule_leaves_the_types_and_the_names_of_uploads() -> None:
    half = [{"model": {"w": torch.full((2,), float(k), dtype=torch.float16), "empty": {}}} for k in range(5)]
    for rule in RULES:
        found, _ = combined(rule, packets(*half))
        assert found.values["model"].keys() == {"w", "empty"}
        assert found.values["model"]["w"].dtype == torch.float16


KEPT = {"model": Upload(Combine.KEEP, Role.MODEL), "score": Upload(Combine.KEEP, Role.SCORE)}
SUMS = {"moments": Upload(Combine.SUM, Role.STATISTICS), "count": Upload(Combine.SUM, Role.COUNTS)}


@each_rule()
def test_what_a_rule_does_not_cover_is_combined_as_declared(rule: Rule) -> None:
    arrays = [{"moments": torch.tensor([10.0**k]), "count": torch.tensor([k])} for k in range(6)]
    found, said = combined(rule, packets(*arrays), phase=phase_of(**SUMS))
    assert found.values["moments"].tolist() == [111111.0]
    assert found.values["count"].tolist() == [15]
    assert said.defended.as_json() == {}
    assert Defence(rule).uncovered(phase_of(**SUMS)) == ("moments", "count")
    assert not Defence(rule).concerns(phase_of(**SUMS))


def test_clipping_reaches_models_that_the_server_reads_one_by_one() -> None:
    arrays = [{"model": model([length, 0.0]), "score": torch.tensor(0.5)} for length in (1.0, 2.0, 3.0, 400.0)]
    shared = {"model": model([0.0, 0.0])}
    found, said = combined(Clipped(), packets(*arrays), phase=phase_of(**KEPT), shared=shared)
    assert [float(found.values["model"][str(k)]["params"]["w"][0]) for k in range(4)] == [1.0, 2.0, 2.0, 2.0]
    assert said.defended.clipped == (2, 3)
    untouched, _ = combined(Median(), packets(*arrays), phase=phase_of(**KEPT), shared=shared)
    assert float(untouched.values["model"]["3"]["params"]["w"][0]) == 400.0


def test_a_model_without_a_broadcast_has_no_length_but_a_part_of_one_is_found_in_it() -> None:
    whole = {"head": Upload(Combine.KEEP, Role.MODEL)}
    arrays = [{"head": {"params": {"head.w": torch.tensor([5.0 + length])}}} for length in (0.1, 0.2, 9.0)]
    nobody, said = combined(Clipped(), packets(*arrays), phase=phase_of(**whole))
    assert said.defended.clipped == ()
    assert float(nobody.values["head"]["2"]["params"]["head.w"]) == 14.0
    shared = {"model": {"params": {"head.w": torch.tensor([5.0]), "conv.w": torch.tensor([1.0])}}}
    found, said = combined(Clipped(), packets(*arrays), phase=phase_of(**whole), shared=shared)
    assert said.defended.clipped == (2,)
    assert math.isclose(float(found.values["head"]["2"]["params"]["head.w"]), 5.2, rel_tol=1e-6)


def test_a_bound_refuses_packets_and_says_why() -> None:
    arrays = [{"model": model([length, 0.0], [1.0])} for length in (1.0, 2.0, 3.0, 40.0)]
    shared = {"model": model([0.0, 0.0], [1.0])}
    found, said = combined(Defence(bound=NormBound(Bound(3.0))), packets(*arrays), shared=shared)
    assert found.clients == (0, 1, 2)
    assert flat(found.values["model"]).tolist() == [2.0, 0.0, 1.0]
    (failure,) = said.refused
    assert (failure.client, failure.phase, failure.cause) == (3, "train", "defence")
    assert "changes 'model' by 40: expected at most 6 (norm_bound, 3 times the median)" in failure.reason
    assert said.defended.as_json() == {"refused": [3]}


def test_buffers_are_measured_by_themselves() -> None:
    """Variances of hundreds would hide any change of weights; wrong ones are refused too."""
    arrays = [{"model": model([0.1, 0.0], [300.0 + k])} for k in range(4)]
    arrays += [{"model": model([9.0, 0.0], [300.0])}, {"model": model([0.1, 0.0], [9000.0])}]
    found, said = combined(
        Defence(bound=NormBound(Bound(5.0))), packets(*arrays), shared={"model": model([0.0, 0.0], [290.0])}
    )
    assert found.clients == (0, 1, 2, 3)
    assert [failure.client for failure in said.refused] == [4, 5]


def test_where_all_are_refused_there_is_nothing_combined() -> None:
    arrays = [{"model": model([5.0])} for _ in range(4)]
    found, said = combined(
        Defence(Median(), NormBound(Bound(1.0, is_relative=False))), packets(*arrays), shared={"model": model([0.0])}
    )
    assert (found.values, found.clients, found.weights) == ({}, (), ())
    assert len(said.refused) == 4


@pytest.mark.parametrize(
    ("rule", "instead"), [(Krum(2.0), "median"), (Trimmed(2.0), "median"), (Median(), "median"), (Clipped(), "clipped")]
)
def test_with_too_few_packets_the_median_takes_over_and_it_is_said(rule: Rule, instead: str) -> None:
    sent = packets(*({"model": model([value])} for value in (1.0, 2.0)))
    found, said = combined(rule, sent, shared={"model": model([0.0])}, invited=10)
    assert found.values["model"]["params"]["w"].tolist() == ([1.0] if instead == "clipped" else [1.5])
    (event,) = said.events
    assert str(event).endswith(f"combined by '{instead}' in this round")
    enough = packets(*({"model": model([value])} for value in range(7)))
    assert combined(rule, enough, shared={"model": model([0.0])}, invited=10)[1].events == []


def test_what_is_combined_already_is_refused() -> None:
    _, said = combined(Median(), packets({"model": model([1.0])}))
    with pytest.raises(RunError, match="combined already, but robust combination must see each"):
        said.merge(Combiner(phase_of(), 3))


@pytest.mark.parametrize(
    ("part", "clients", "count"), [(0.2, 10, 2), (0.1, 30, 3), (0.2, 3, 1), (0.0, 9, 0), (3.0, 9, 3), (0.29, 100, 29)]
)
def test_how_many_may_be_attackers(part: float, clients: int, count: int) -> None:
    assert assumed(part, clients) == count


@pytest.mark.parametrize(
    ("text", "bound"), [("3x", Bound(3.0)), (" 2.5 ", Bound(2.5, is_relative=False)), ("1e2 x", Bound(100.0))]
)
def test_a_bound_is_read(text: str, bound: Bound) -> None:
    assert bound_of(text, "norm_bound") == bound


@pytest.mark.parametrize("text", ["", "x", "-1x", "0", "nan", "inf", "3 medians", "1..2", "--1", "1e999"])
def test_a_bound_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"norm_bound = .*expected a length above 0"):
        bound_of(text, "norm_bound")


def test_packets_are_kept_although_their_arrays_are_overwritten() -> None:
    arrays = {"model": model([1.0])}
    _, _ = combined(Median(), [])
    sent = [Packet(0, "train", k, 1.0, arrays) for k in range(3)]
    from fewfed.engine.robust.combiner import DefendedCombiner

    holder = DefendedCombiner(Defence(Median()), phase_of(), 3, {}, 3)
    for value, packet in enumerate(sent):
        arrays["model"]["params"]["w"].fill_(float(value))
        holder.add(packet)
    assert holder.finish().values["model"]["params"]["w"].tolist() == [1.0]


def test_nothing_gathered_has_no_parts() -> None:
    assert gathered([]).parts(["model"]) == []
