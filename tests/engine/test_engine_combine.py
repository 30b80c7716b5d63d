"""Combinations against hand-computed sums and NumPy."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fewfed import tree
from fewfed.conformance.differences import differences
from fewfed.engine.combine import SHARDS, Combiner, shard_of
from fewfed.engine.packet import BadPacket, Packet
from fewfed.engine.schema import Schema, is_sound
from fewfed.method import Combined, Method
from fewfed.phase import Combine, Phase, Role, Upload
from fewfed.tree import Tree

Sent = tuple[int, Tree, float]


def phase_of(relayed: tuple[str, ...] = (), **uploads: Combine) -> Phase:
    declared = {name: Upload(how, Role.STATISTICS) for name, how in uploads.items()}
    return Phase("train", Method(), 1, declared, relayed=frozenset(relayed))


def packet(client: int, upload: Tree, weight: float = 1.0) -> Packet:
    return Packet(0, "train", client, weight, upload)


def combined(how: Combine, *sent: Sent, clients: int = 100) -> Combined:
    combiner = Combiner(phase_of(value=how), clients)
    for one in sent:
        combiner.add(packet(*one))
    return combiner.finish()


def test_mean_is_weighted_by_samples_over_the_whole_state_including_running_statistics() -> None:
    few = {"params": {"w": torch.tensor([0.0, 4.0])}, "buffers": {"mean": torch.tensor([1.0])}}
    many = {"params": {"w": torch.tensor([8.0, 0.0])}, "buffers": {"mean": torch.tensor([3.0])}}
    result = combined(Combine.MEAN, (0, {"value": few}, 100.0), (1, {"value": many}, 300.0))
    assert result.values["value"]["buffers"]["mean"].tolist() == [2.5]
    assert result.values["value"]["params"]["w"].tolist() == [6.0, 1.0]
    assert result.clients == (0, 1)
    assert result.weights == (100.0, 300.0)


def test_mean_does_not_average_integers() -> None:
    first = {"steps": torch.tensor(3), "flag": torch.tensor([True, False])}
    second = {"steps": torch.tensor(8), "flag": torch.tensor([True, False])}
    value = combined(Combine.MEAN, (0, {"value": first}, 1.0), (1, {"value": second}, 2.0)).values["value"]
    assert value["steps"].dtype == torch.int64
    assert int(value["steps"]) in (3, 8)
    assert value["flag"].tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_mean_accumulates_in_float64_and_returns_the_type_it_got(dtype: torch.dtype) -> None:
    """In float32, and the more in half precision, a running sum of these loses the small terms altogether."""
    values = [torch.tensor([2.0**20 if dtype.itemsize > 2 else 256.0], dtype=dtype)]
    values += [torch.tensor([2.0**-8], dtype=dtype)] * 64
    result = combined(Combine.MEAN, *((k, {"value": v}, 1.0) for k, v in enumerate(values))).values["value"]
    expected = np.mean([float(v) for v in values])
    assert result.dtype == dtype
    assert result.item() == torch.tensor(expected, dtype=torch.float64).to(dtype).item()


def test_mean_matches_numpy_on_random_models() -> None:
    generator = torch.Generator().manual_seed(5)
    models = [torch.randn(7, 3, generator=generator) for _ in range(6)]
    weights = [3.0, 1.0, 40.0, 12.0, 5.0, 9.0]
    sent = [(k, {"value": {"w": m}}, n) for k, (m, n) in enumerate(zip(models, weights, strict=True))]
    expected = np.average(np.stack([m.double().numpy() for m in models]), axis=0, weights=weights)
    result = combined(Combine.MEAN, *sent).values["value"]["w"]
    np.testing.assert_array_equal(result.numpy(), expected.astype(np.float32))


def test_mean_does_not_depend_on_the_order_of_clients() -> None:
    generator = torch.Generator().manual_seed(2)
    sent = [(k, {"value": {"w": torch.randn(50, generator=generator)}}, float(n)) for k, n in enumerate((7, 1, 30, 12))]
    results = [combined(Combine.MEAN, *order).values for order in itertools.permutations(sent)]
    assert all(not differences(results[0], other) for other in results[1:])


def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    generator = torch.Generator().manual_seed(0)
    uploads = [{"value": torch.randn(200_003, generator=generator)} for _ in range(3)]
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(combined(Combine.MEAN, *((k, upload, 3.0 + k) for k, upload in enumerate(uploads))).values)
        assert torch.get_num_threads() == threads
    assert not differences(results[0], results[1])
    assert not differences(results[0], results[2])


def test_a_mean_of_equal_models_is_that_model() -> None:
    model = {"w": torch.tensor([0.1, -3.7, 1e-30])}
    result = combined(Combine.MEAN, *((k, {"value": model}, 1.0) for k in range(8))).values["value"]
    assert not differences(result, model)


def test_sum_ignores_weights() -> None:
    result = combined(
        Combine.SUM, (0, {"value": torch.tensor([1.0, 2.0])}, 10.0), (1, {"value": torch.tensor([0.5, -2.0])}, 90.0)
    )
    assert result.values["value"].tolist() == [1.5, 0.0]


def test_sum_adds_integers() -> None:
    counts = [torch.tensor([3, 0, 7]), torch.tensor([1, 1, 1]), torch.tensor([0, 5, 0])]
    result = combined(Combine.SUM, *((k, {"value": c}, 1.0) for k, c in enumerate(counts))).values["value"]
    assert result.dtype == torch.int64
    assert result.tolist() == [4, 6, 8]


def test_concat_puts_rows_after_one_another_and_counts_them() -> None:
    combiner = Combiner(phase_of(features=Combine.CONCAT, labels=Combine.CONCAT), 10)
    combiner.add(packet(2, {"features": torch.zeros(2, 3), "labels": torch.tensor([1, 1])}))
    combiner.add(packet(4, {"features": torch.zeros(0, 3), "labels": torch.empty(0, dtype=torch.int64)}))
    combiner.add(packet(9, {"features": torch.ones(1, 3), "labels": torch.tensor([7])}))
    values = combiner.finish().values
    assert values["features"].tolist() == [[0.0] * 3, [0.0] * 3, [1.0] * 3]
    assert values["labels"].tolist() == [1, 1, 7]
    assert combiner.rows() == {"features": 3, "labels": 3}


def test_concat_joins_trees_leaf_by_leaf() -> None:
    parts = [
        {"a": torch.tensor([1.0]), "b": {"c": torch.tensor([[1]])}},
        {"a": torch.tensor([2.0]), "b": {"c": torch.tensor([[2]])}},
    ]
    value = combined(Combine.CONCAT, *((k, {"value": part}, 1.0) for k, part in enumerate(parts))).values["value"]
    assert not differences(value, {"a": torch.tensor([1.0, 2.0]), "b": {"c": torch.tensor([[1], [2]])}})


def test_keep_holds_one_entry_a_client_under_its_number() -> None:
    value = combined(
        Combine.KEEP, (3, {"value": {"w": torch.tensor([1.0])}}, 1.0), (11, {"value": {"w": torch.tensor([2.0])}}, 1.0)
    ).values["value"]
    assert not differences(value, {"3": {"w": torch.tensor([1.0])}, "11": {"w": torch.tensor([2.0])}})


@pytest.mark.parametrize("how", list(Combine))
def test_uploads_may_be_overwritten_once_they_are_added(how: Combine) -> None:
    """Executors hand over views of memory that the next client writes into."""
    area = torch.tensor([1.0, 2.0])
    combiner = Combiner(phase_of(value=how), 10)
    combiner.add(packet(0, {"value": {"w": area}}))
    area.fill_(99.0)
    value = combiner.finish().values["value"]
    assert (value["0"] if how is Combine.KEEP else value)["w"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("upload", "wrong"),
    [
        ({}, "upload 'value' is missing"),
        ({"value": torch.ones(1), "more": torch.ones(1)}, "upload 'more' is not declared"),
        ({"other": torch.ones(1)}, "upload 'other' is not declared"),
    ],
)
def test_an_undeclared_or_missing_upload_is_refused_before_it_is_combined(upload: Tree, wrong: str) -> None:
    schema = Schema(0, phase_of(value=Combine.MEAN), classes=10, most_rows=12, leaves=None)
    with pytest.raises(BadPacket, match=f"its {wrong}: expected value"):
        schema.check(packet(6, upload), sender=6)
    schema.check(packet(6, {"value": torch.ones(1)}), sender=6)


def test_nobody_sending_combines_to_nothing() -> None:
    result = Combiner(phase_of(value=Combine.MEAN), 10).finish()
    assert result == Combined({}, (), ())


def test_bytes_are_those_of_every_upload_as_it_travels() -> None:
    combiner = Combiner(phase_of(value=Combine.KEEP), 10)
    combiner.add(packet(0, {"value": {"w": torch.zeros(5), "b": torch.zeros(3, dtype=torch.float64)}}))
    combiner.add(packet(1, {"value": {"w": torch.zeros(5), "b": torch.zeros(2, dtype=torch.uint8)}}))
    assert combiner.bytes == (20 + 24) + (20 + 2)
    assert combiner.relayed == 0


KINDS = {how.value: how for how in Combine}
"""One upload of every kind, so that a packet has them all."""


@st.composite
def cohorts(draw: st.DrawFn) -> tuple[int, list[Packet]]:
    """How many clients there are, and the packets of some of them, ascending: rounding would show any other order."""
    clients = draw(st.integers(1, 200))
    taking_part = draw(st.sets(st.integers(0, clients - 1), min_size=1, max_size=30))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return clients, [_random_packet(client, random) for client in sorted(taking_part)]


def _random_packet(client: int, random: torch.Generator) -> Packet:
    rows = int(torch.randint(0, 4, (1,), generator=random))

    def numbers(*shape: int) -> Tree:
        wide = torch.randn(*shape, generator=random, dtype=torch.float64) * 10.0 ** (client % 7)
        counts = torch.randint(0, 90, shape, generator=random)
        return {"wide": wide, "narrow": wide.float(), "half": wide.to(torch.bfloat16), "deep": {"counts": counts}}

    upload = {name: numbers(*((rows, 3) if how is Combine.CONCAT else (5,))) for name, how in KINDS.items()}
    return packet(client, upload, float(torch.rand(1, generator=random)) * 40)


def _one_combiner(packets: Sequence[Packet], clients: int) -> Combiner:
    combiner = Combiner(phase_of(relayed=("keep",), **KINDS), clients)
    for one in packets:
        combiner.add(one)
    return combiner


def _by_shard(packets: Sequence[Packet], clients: int) -> dict[int, list[Packet]]:
    shards: dict[int, list[Packet]] = {}
    for one in packets:
        shards.setdefault(shard_of(one.sender, clients), []).append(one)
    return shards


def _assert_same_end(found: Combiner, expected: Combiner) -> None:
    ours, theirs = found.finish(), expected.finish()
    assert not differences(ours.values, theirs.values)
    assert list(dict(tree.leaves(ours.values))) == list(dict(tree.leaves(theirs.values))), "another order of leaves"
    assert (ours.clients, ours.weights) == (theirs.clients, theirs.weights)
    assert (found.bytes, found.relayed, found.rows()) == (expected.bytes, expected.relayed, expected.rows())


@given(cohorts(), st.randoms(use_true_random=False))
def test_shards_combined_apart_in_any_order_give_the_bits_of_one_combiner(
    cohort: tuple[int, list[Packet]], random: Random
) -> None:
    """Every kind of combination; whoever holds a shard may be early or late, only merging has an order."""
    clients, packets = cohort
    shards = _by_shard(packets, clients)
    in_any_order = list(shards)
    random.shuffle(in_any_order)
    made = {shard: _one_combiner(shards[shard], clients) for shard in in_any_order}
    merged = Combiner(phase_of(relayed=("keep",), **KINDS), clients)
    for shard in sorted(made):
        merged.merge(made[shard])
    _assert_same_end(merged, _one_combiner(packets, clients))


@given(cohorts(), st.sets(st.integers(0, SHARDS - 1)))
def test_single_packets_and_whole_shards_may_follow_each_other(
    cohort: tuple[int, list[Packet]], apart: set[int]
) -> None:
    """Of some shards an executor hands over packets, of others the combination: one a shard, not one of several."""
    clients, packets = cohort
    mixed = Combiner(phase_of(relayed=("keep",), **KINDS), clients)
    for shard, part in _by_shard(packets, clients).items():
        if shard in apart:
            mixed.merge(_one_combiner(part, clients))
        else:
            for one in part:
                mixed.add(one)
    _assert_same_end(mixed, _one_combiner(packets, clients))


@given(cohorts(), st.randoms(use_true_random=False))
def test_no_order_changes_what_is_combined_but_for_rounding(cohort: tuple[int, list[Packet]], random: Random) -> None:
    """Whole numbers, of which every sum is exact, fed and merged in any order: the bits are the same then.

    Order is the executor's promise, not the combiner's: rows of CONCAT and the clients stand in the order they came.
    """
    clients, packets = cohort
    exact = [
        dataclasses.replace(one, weight=float(one.sender % 9 + 1), arrays=tree.map(_whole, one.arrays))
        for one in packets
    ]
    expected = _one_combiner(exact, clients)
    shuffled = list(exact)
    random.shuffle(shuffled)
    parts = list(_by_shard(shuffled, clients).values())
    random.shuffle(parts)
    merged = Combiner(phase_of(relayed=("keep",), **KINDS), clients)
    for part in parts:
        merged.merge(_one_combiner(part, clients))
    for found in (_one_combiner(shuffled, clients), merged):
        ours, theirs = found.finish(), expected.finish()
        for how in (Combine.MEAN, Combine.SUM, Combine.KEEP):
            assert not differences({"": ours.values[how.value]}, {"": theirs.values[how.value]}), how
        for path, rows in tree.leaves(ours.values["concat"]):
            assert sorted(rows.tolist()) == sorted(dict(tree.leaves(theirs.values["concat"]))[path].tolist())
        assert sorted(zip(ours.clients, ours.weights, strict=True)) == list(
            zip(theirs.clients, theirs.weights, strict=True)
        )
        assert (found.bytes, found.relayed, found.rows()) == (expected.bytes, expected.relayed, expected.rows())


def _whole(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.remainder(64).round() if leaf.is_floating_point() else leaf


@given(cohorts())
def test_bytes_and_rows_of_the_parts_add_up(cohort: tuple[int, list[Packet]]) -> None:
    clients, packets = cohort
    whole = _one_combiner(packets, clients)
    parts = [_one_combiner(part, clients) for part in _by_shard(packets, clients).values()]
    assert whole.bytes == sum(part.bytes for part in parts) == sum(tree.nbytes(one.arrays) for one in packets)
    assert whole.relayed == sum(part.relayed for part in parts)
    assert whole.relayed == sum(tree.nbytes({"keep": one.arrays["keep"]}) for one in packets)
    rows = sum(len(one.arrays["concat"]["wide"]) for one in packets)
    assert whole.rows() == {"concat": rows} == {"concat": sum(part.rows()["concat"] for part in parts)}


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_shards_are_ranges_of_client_numbers(clients: int, client: int) -> None:
    client %= clients
    assert 0 <= shard_of(client, clients) < SHARDS
    assert shard_of(client, clients) <= shard_of(min(client + 1, clients - 1), clients)


def test_clients_spread_over_all_shards() -> None:
    sizes = np.bincount([shard_of(client, 1000) for client in range(1000)])
    assert len(sizes) == SHARDS
    assert set(sizes) <= {62, 63}
    assert shard_of(-1, 1000) == 0, "the server itself"


@given(cohorts())
def test_a_block_combines_to_the_same_but_for_rounding(cohort: tuple[int, list[Packet]]) -> None:
    clients, packets = cohort
    block = Combiner(phase_of(relayed=("keep",), **KINDS), clients)
    block.add_block(packets)
    expected = _one_combiner(packets, clients)
    ours, theirs = dict(tree.leaves(block.finish().values)), dict(tree.leaves(expected.finish().values))
    assert ours.keys() == theirs.keys()
    for path, value in theirs.items():
        assert ours[path].dtype == value.dtype
        if path.endswith("wide"):
            torch.testing.assert_close(ours[path], value, rtol=1e-12, atol=1e-8)
        elif path.endswith("counts"):
            assert torch.equal(ours[path], value)
    assert (block.bytes, block.relayed, block.rows()) == (expected.bytes, expected.relayed, expected.rows())


@pytest.mark.parametrize("how", list(Combine))
@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_one_number_that_is_none_is_seen_in_the_combination(how: Combine, broken: float) -> None:
    good, bad = torch.ones(3, 2), torch.tensor([[1.0, broken]])
    combiner = Combiner(phase_of(value=how), 10)
    combiner.add(packet(0, {"value": {"w": good[:1]}}))
    assert is_sound(combiner.numbers())
    combiner.add(packet(9, {"value": {"w": bad}}))
    assert not is_sound(combiner.numbers())
