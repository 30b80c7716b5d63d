"""Combinations against hand-computed sums and NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from exact import differences

from fewfed.engine.combine import Combiner
from fewfed.method import Combined
from fewfed.phase import Combine, Phase
from fewfed.tree import Tree

Sent = tuple[int, Tree, float]


def combined(how: Combine, *sent: Sent) -> Combined:
    combiner = Combiner(Phase("train", 1, {"value": how}))
    for client, upload, weight in sent:
        combiner.add(client, upload, weight)
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
    phase = Phase("share", 0, {"features": Combine.CONCAT, "labels": Combine.CONCAT})
    combiner = Combiner(phase)
    combiner.add(2, {"features": torch.zeros(2, 3), "labels": torch.tensor([1, 1])}, 5.0)
    combiner.add(4, {"features": torch.zeros(0, 3), "labels": torch.empty(0, dtype=torch.int64)}, 5.0)
    combiner.add(9, {"features": torch.ones(1, 3), "labels": torch.tensor([7])}, 5.0)
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
    combiner = Combiner(Phase("train", 1, {"value": how}))
    combiner.add(0, {"value": {"w": area}}, 1.0)
    area.fill_(99.0)
    value = combiner.finish().values["value"]
    assert (value["0"] if how is Combine.KEEP else value)["w"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("upload", [{}, {"value": torch.ones(1), "more": torch.ones(1)}, {"other": torch.ones(1)}])
def test_an_undeclared_or_missing_upload_is_an_error_that_names_both_sides(upload: Tree) -> None:
    combiner = Combiner(Phase("train", 1, {"value": Combine.MEAN}))
    with pytest.raises(ValueError, match=r"phase 'train' declares the uploads \['value'\], client 6 sent") as error:
        combiner.add(6, upload, 1.0)
    assert str(sorted(upload)) in str(error.value)


def test_nobody_sending_combines_to_nothing() -> None:
    result = Combiner(Phase("train", 1)).finish()
    assert result == Combined({}, (), ())


def test_bytes_are_those_of_every_upload_as_it_travels() -> None:
    combiner = Combiner(Phase("train", 1, {"value": Combine.KEEP}))
    combiner.add(0, {"value": {"w": torch.zeros(5), "b": torch.zeros(3, dtype=torch.float64)}}, 1.0)
    combiner.add(1, {"value": {"w": torch.zeros(5), "b": torch.zeros(2, dtype=torch.uint8)}}, 1.0)
    assert combiner.bytes == (20 + 24) + (20 + 2)
