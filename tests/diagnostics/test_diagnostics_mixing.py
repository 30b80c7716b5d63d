"""Class shares of buffer, local rows and mixed batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fewfed.diagnostics.mixing import Mixing, MixingWatch, mixing_of, shared_labels
from fewfed.diagnostics.replay import Repeated
from fewfed.errors import ConfigError
from fewfed.method import Batch
from fewfed.methods.registry import choose
from fewfed.phase import Clock
from fewfed.tree import Tree
from support import job_of, run


def mixed_by(spec: str, client: int, received: Tree, batch: Batch, counts: list[int]) -> Mixing:
    """What a method mixes in its second round; the labels are found by their role in what it broadcast."""
    method = choose(spec).method
    labels = shared_labels(method, Clock(1, 5, 1), received)
    assert labels is not None
    return mixing_of(method, Repeated(client, received, {}, (batch,)), labels, 2, torch.tensor(counts))


def test_mass_of_the_specification(flea_values: dict[str, Any]) -> None:
    case = flea_values["mixup"]
    draw = {"row": torch.tensor([0, 1]), "lam": torch.tensor(case["lambda"], dtype=torch.float64)}
    batch = Batch(torch.zeros(2, 1), torch.tensor(case["y_local"]), draw)
    found = mixed_by("flea", 4, {"labels": torch.tensor(case["y_buffer"])}, batch, [3, 0, 1])
    assert (found.round, found.client) == (2, 4)
    assert found.mixed == pytest.approx(torch.tensor(case["y_mixed"]).mean(0).tolist())
    assert found.buffer == [0.0, 0.5, 0.5]
    assert found.local == [0.75, 0.0, 0.25]
    assert found.weights == case["lambda"]


def test_soft_labels_of_averages_count_as_they_are() -> None:
    labels = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    draw = {"row": torch.tensor([0, 1]), "lam": torch.tensor([0.5])}
    found = mixed_by("fedmix", 0, {"mean_y": labels}, Batch(torch.zeros(2, 1), torch.tensor([0, 0]), draw), [2, 0])
    assert found.mixed == pytest.approx([0.625, 0.375])
    assert found.buffer == pytest.approx([0.25, 0.75])


def test_buffer_of_a_round_is_what_the_round_before_uploaded() -> None:
    watch = MixingWatch()
    recorded = run(job_of("flea"), rounds=3, observers=[watch])
    assert [found.round for found in watch.seen] == [2, 3]  # there is no buffer in the first
    for found in watch.seen:
        labels = recorded.views[found.round - 2].phases[1].combined.values["labels"]
        expected = torch.bincount(labels, minlength=10).double() / len(labels)
        assert found.buffer == pytest.approx(expected.tolist())
        for shares in (found.buffer, found.local, found.mixed):
            assert sum(shares) == pytest.approx(1)
        assert all(0 < weight < 1 for weight in found.weights)
        assert len(found.weights) == 8


def test_mixed_mass_lies_between_local_rows_and_buffer() -> None:
    watch = MixingWatch()
    run(job_of("flea", training={"epochs": 20}), rounds=2, observers=[watch])
    found = watch.seen[0]
    halfway = [(a + b) / 2 for a, b in zip(found.local, found.buffer, strict=True)]
    assert found.mixed == pytest.approx(halfway, abs=0.05)  # Beta(2, 2) has mean 1/2


def test_one_method_with_averages_and_one_without_sharing() -> None:
    watch = MixingWatch()
    run(job_of("fedmix"), rounds=1, observers=[watch])
    assert len(watch.seen[0].weights) == 1  # one weight a batch
    nothing = MixingWatch()
    run(job_of("fedavg"), rounds=2, observers=[nothing])
    assert nothing.seen == []


def test_sharing_without_mixing_is_refused() -> None:
    with pytest.raises(ConfigError, match="mixes no shared rows"):
        run(job_of("feddata"), rounds=1, observers=[MixingWatch()])
