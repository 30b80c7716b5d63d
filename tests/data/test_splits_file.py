"""Splits from a file of row numbers: what they give, what they refuse, and that a run knows its file by its content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewfed.data.split_file import BYTES_A_ROW, FREE_BYTES
from fewfed.data.splits import Split, make_split, parse_rule
from fewfed.errors import ConfigError, DataError, RunError
from fewfed.runs.execute import continued, execute
from fewfed.runs.experiment import resolve
from fewfed.runs.identity import refuse_other_runs
from fewfed.runs.prepare import prepare

LABELS = np.arange(10) % 3


def split_of(folder: Path, content: Any, **more: Any) -> Split:
    file = folder / "split.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return make_split(f"file:{file}", LABELS, 3, more.pop("clients", 0), 0, **more)


def held(split: Split) -> list[list[int]]:
    return [split.rows(client).tolist() for client in range(len(split))]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([[3, 1], [0], [9, 2]], [[3, 1], [0], [9, 2]]),
        # What SEM's authors wrote: an object, indented, a client's number as text.
        ('{\n    "0": [\n        3,\n        1\n    ],\n    "1": [\n        7\n    ]\n}', [[3, 1], [7]]),
        ({"10": [5], "9": [4], "2": [1]}, [[1], [4], [5]]),
        ({"10": [5], "9": [4], "08": [1], "007": [0], "0": [2]}, [[2], [0], [1], [4], [5]]),
        ({"1" + "0" * 5000: [5], "9" * 5000: [4]}, [[4], [5]]),
        ({"ward": [5], "lab": [4, 0]}, [[5], [4, 0]]),
        ("\ufeff[[1]]", [[1]]),
    ],
)
def test_rows_are_those_of_the_file_in_its_order(tmp_path: Path, content: Any, expected: list[list[int]]) -> None:
    split = split_of(tmp_path, content)
    assert held(split) == expected
    assert split.manifest(LABELS, 3)["rows"] == sum(map(len, expected))
    assert held(split_of(tmp_path, content, clients=len(expected))) == expected


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([[1], [2, 10]], "client '1' has the row 10: expected whole numbers from 0 to 9"),
        ([[-1]], "client '0' has the row -1: expected whole numbers from 0 to 9"),
        ([[1.0]], "client '0' has the row 1.0: expected whole numbers"),
        ([[True]], "has the row a truth value"),
        (["12"], "client '0' has \"12\": expected a list of row numbers"),
        ([[[1]]], "has the row a list"),
        ([[10**40]], "has the row 1{1}0{29}"),
        ([[1], [2, 1]], "gives row 1 to client '0' and to client '1': expected every row at most once"),
        ({"a": [4, 4]}, "gives row 4 to client 'a' and to client 'a'"),
        ([[1], []], "gives client '1' 0 rows: expected at least 1"),
        ([], "holds no clients"),
        ({}, "holds no clients"),
        ("3", "holds no clients"),
        ('{"a": [1], "a": [2]}', "client 'a' stands there twice"),
        ("[[1]", "is not JSON"),
        ("[" * 200_000, "nested too deeply"),
        ("[[" + "9" * 6000 + "]]", "is not JSON"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(tmp_path: Path, content: Any, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence) as caught:
        split_of(tmp_path, content)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)


def test_a_file_much_larger_than_its_rows_could_be_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected at most"):
        split_of(tmp_path, "[[1]]" + " " * (FREE_BYTES + BYTES_A_ROW * len(LABELS)))


def test_what_does_not_go_with_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has 2 clients but 3 were asked for"):
        split_of(tmp_path, [[1], [2]], clients=3)
    with pytest.raises(ConfigError, match=r"volume = 0\.5"):
        split_of(tmp_path, [[1], [2]], volume=0.5)
    with pytest.raises(ConfigError, match="legacy_seed"):
        split_of(tmp_path, [[1], [2]], legacy_seed=1)
    with pytest.raises(DataError, match="gives client '0' 1 rows: expected at least 2"):
        split_of(tmp_path, [[1], [2]], min_size=2)
    assert split_of(tmp_path, [[1], []], min_size=0).sizes.tolist() == [1, 0]


@pytest.mark.parametrize("rule", ["file", "file:"])
def test_a_path_is_needed(rule: str) -> None:
    with pytest.raises(ConfigError, match="'file:PATH'"):
        parse_rule(rule)


@pytest.mark.parametrize("name", ["missing.json", ".", "x" * 300])
def test_a_path_that_is_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"regular file|cannot be opened") as caught:
        prepare(resolve("fedavg", {"split": f"file:{tmp_path / name}", "clients": 0}))
    assert caught.value.key == "split"


def test_a_path_may_hold_colons() -> None:
    assert parse_rule("file:a:b/c.json").path == Path("a:b/c.json")


def test_a_run_is_known_by_the_content_of_its_split(tmp_path: Path) -> None:
    """With other clients it is another run, although path and data are the same."""
    file, folder = tmp_path / "split.json", tmp_path / "run"
    rows = [list(range(20)), list(range(20, 50)), list(range(50, 60))]
    file.write_text(json.dumps(rows))
    values = {"split": f"file:{file}", "clients": 0, "cohort": 2, "rounds": 1, "epochs": 1, "executor": "sequential"}
    resolved = resolve("fedavg", values)
    result = execute(prepare(resolved), folder)
    assert result.clients == 3
    assert json.loads((folder / "split.json").read_text())["sizes"]["largest"] == 30
    refuse_other_runs([(folder, resolved)])
    file.write_text(json.dumps(rows[::-1]))
    with pytest.raises(RunError, match="was started with another split"):
        refuse_other_runs([(folder, resolved)])
    with pytest.raises(RunError, match="was started with another split"):
        continued(prepare(resolved), folder, [])
