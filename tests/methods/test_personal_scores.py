"""Traps 32 and 36 of the FedFA, SEM and FLAIR specification: scores of single clients, and of single rounds."""

from __future__ import annotations

import torch

from fewfed.runs.results import Summary
from fewfed.tasks.classification import Classification


def test_trap_32_two_clients_are_scored_apart() -> None:
    task = Classification(2)
    labels = torch.tensor([0, 1, 0, 1])
    right, wrong = torch.nn.functional.one_hot(labels).float(), torch.nn.functional.one_hot(1 - labels).float()
    assert [task.score(right, labels).accuracy, task.score(wrong, labels).accuracy] == [1.0, 0.0]


def test_trap_36_the_best_round_is_never_all_that_is_reported() -> None:
    curve = [0.1] * 5 + [0.9] + [0.5] * 20
    found = Summary.of(curve)
    assert (found.best, found.last, found.last10) == (0.9, 0.5, 0.5)
