"""SEM's generator against the simulated values of its specification: sparsity and scarcity over several draws."""

from __future__ import annotations

import numpy as np
import pytest

from fewfed.data import skew
from fewfed.data.splits import make_split

CIFAR10 = [5000] * 10
CIFAR100 = [500] * 100
MNIST = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.parametrize(
    ("class_sizes", "mu", "volume", "clients", "sparsity", "scarcity"),
    [
        (CIFAR10, 0.1, 0.05, 100, (0.718, 0.013), (0.863, 0.021)),
        (CIFAR10, 0.1, 0.2, 100, (0.626, 0.013), (0.381, 0.036)),
        (CIFAR10, 0.1, 1.0, 100, (0.533, 0.015), (0.091, 0.028)),
        (CIFAR10, 0.5, 0.8, 500, (0.243, 0.004), (0.219, 0.014)),
        (CIFAR100, 0.1, 0.2, 100, (0.783, 0.003), None),
        (MNIST, 0.5, 0.2, 100, (0.198, 0.013), None),
    ],
)
def test_means_agree_with_the_specification(
    class_sizes: list[int],
    mu: float,
    volume: float,
    clients: int,
    sparsity: tuple[float, float],
    scarcity: tuple[float, float] | None,
) -> None:
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    # The reference values were simulated with empty clients left in.
    drawn = [
        make_split(f"dirm:{mu}", labels, len(class_sizes), clients, seed, volume=volume, min_size=0).counts(
            labels, len(class_sizes)
        )
        for seed in range(8)
    ]
    mean, deviation = sparsity
    assert abs(np.mean([skew.sparsity(counts) for counts in drawn]) - mean) < 2 * deviation
    if scarcity is not None:
        mean, deviation = scarcity
        assert abs(np.mean([skew.scarcity(counts) for counts in drawn]) - mean) < 2 * deviation


def test_nearly_even_proportions_leave_poisson_cells() -> None:
    labels = np.repeat(np.arange(100), 100)
    counts = make_split("dirm:100", labels, 100, 100, seed=0).counts(labels, 100)
    assert abs(skew.sparsity(counts) - np.exp(-1)) < 0.01


def test_empty_clients_are_redrawn_unless_allowed() -> None:
    labels = np.repeat(np.arange(10), 250)
    redrawn = make_split("dirm:0.1", labels, 10, 100, seed=0)
    assert redrawn.sizes.min() >= 1
    assert redrawn.attempts > 1
    assert make_split("dirm:0.1", labels, 10, 100, seed=0, min_size=0).attempts == 1
