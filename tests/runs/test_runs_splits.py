"""What a run says of its split: a minimum that was not reached, and the rule of the released partitions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fewfed.data.examples import Dataset, Examples
from fewfed.errors import ConfigError
from fewfed.report.table import rows, to_csv
from fewfed.runs.api import run
from fewfed.runs.experiment import Experiment
from fewfed.runs.prepare import split_of
from run_support import SHORT, small

HALVES = ([655, 557, 504, 621, 691, 648], [571, 516, 482, 665, 683, 759])
"""Windows of each activity in the two halves of UCI-HAR's training file."""


def har(note: str = "") -> Dataset:
    """As many rows of every class as UCI-HAR has, in its order of halves."""
    labels = torch.cat([torch.arange(6).repeat_interleave(torch.tensor(half)) for half in HALVES])
    inputs = torch.randn(len(labels), 1, 2, 2, generator=torch.Generator().manual_seed(0))
    return Dataset("har", Examples(inputs, labels), Examples(inputs[:60], labels[:60]), 6, note=note)


def test_a_minimum_that_was_not_reached_is_in_the_result_and_in_the_table(tmp_path: Path) -> None:
    """150 clients at MU 0.1: three rows each are found in one of 14 000 draws of half the clients."""
    experiment = small(split="dir:0.1", clients=150, cohort=2.0, rounds=1)
    result = run("fedavg", experiment, SHORT, data=har("windows of 128"), out=tmp_path / "run")
    sizes = split_of(har(), experiment).sizes
    assert sizes.min() < 3
    said = f"smallest client {sizes.min()}: no draw gave every client 3 rows in 1000 attempts"
    assert result.note == f"windows of 128; {said}"
    assert json.loads((tmp_path / "run" / "result.json").read_text())["note"] == result.note
    assert to_csv(rows([("fedavg", result), ("fedavg", result)])).splitlines()[1].endswith(f",{result.note}")


def test_a_split_that_reached_its_minimum_has_nothing_to_say(tmp_path: Path) -> None:
    result = run("fedavg", small(split="dir:0.5"), SHORT, data=har(), out=tmp_path / "run")
    assert result.note == ""


@pytest.mark.parametrize("seed", [0, 1])
def test_the_released_rule_draws_until_every_client_has_three_rows_of_its_half(seed: int) -> None:
    split = split_of(har(), Experiment(split="dir-released:0.1", clients=101, seed=seed))
    assert split.sizes.min() >= 3
    assert split.note == ""
    middle = sum(HALVES[0])
    first = np.concatenate([split.rows(client) for client in range(51)])
    assert np.array_equal(np.sort(first), np.arange(len(first)))
    assert abs(len(first) - middle * 2 * 51 / 101) < 1
    assert np.array_equal(np.sort(split.order), np.arange(2 * middle))


def test_the_released_rule_has_other_minima_elsewhere() -> None:
    assert split_of(har(), Experiment(split="dir-released:0.3", clients=75)).sizes.min() >= 6
    with pytest.raises(ConfigError, match="data with a released partition"):
        split_of(Dataset("mine", har().train, har().test, 6), Experiment(split="dir-released:0.3", clients=75))
