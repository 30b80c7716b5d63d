"""Which published number belongs to which run."""

from __future__ import annotations

import pytest

from fewfed.errors import ConfigError
from fewfed.reproduction.coordinates import canonical
from fewfed.reproduction.published import Published

ROWS = (
    {"set": "MNIST", "alpha": "0.10", "client": "A", "base": "90.5", "sem": "91"},
    {"set": "MNIST", "alpha": "0.10", "client": "Average", "base": "80.5", "sem": "81"},
    {"set": "MNIST", "alpha": "0.3", "client": "Average", "base": "NA", "sem": ""},
)
TABLE = Published(
    table="t.csv",
    rows=ROWS,
    match={"set": "data", "alpha": "split"},
    mean={"fedavg": "base", "sem(fedavg)": "sem"},
    where={"client": "average"},
    spelling={"split": {"dir:0.1": "0.1", "dir:0.3": "0.3"}},
)


@pytest.mark.parametrize(
    ("split", "method", "expected"),
    [
        ("dir:0.1", "fedavg", 80.5),
        ("dir:0.1", "sem(fedavg)", 81.0),
        ("dir:0.1", "flea", None),
        ("dir:0.3", "fedavg", None),
        ("dir:0.5", "fedavg", None),
    ],
)
def test_rows_and_columns_are_found(split: str, method: str, expected: float | None) -> None:
    value = TABLE.value_of({"data": "mnist", "split": split, "method": method})
    assert (value.mean if value else None) == expected


def test_a_run_without_the_axis_has_no_row() -> None:
    assert TABLE.row_of({"data": "mnist", "method": "fedavg"}) is None


def test_two_rows_are_refused() -> None:
    table = Published("t.csv", ROWS, {"set": "data", "alpha": "split"}, mean="base", spelling=TABLE.spelling)
    with pytest.raises(ConfigError, match="2 rows"):
        table.value_of({"data": "mnist", "split": "dir:0.1", "method": "fedavg"})


def test_values_are_equal_as_numbers_or_as_text() -> None:
    assert canonical("0.10") == canonical(0.1)
    assert canonical(" FedAvg") == canonical("fedavg")
    assert canonical(100) == canonical("100.0")
    assert canonical("qua:2") != canonical("qua:3")
