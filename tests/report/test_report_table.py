"""The table of a comparison: means and deviations over seeds, every number readable."""

from __future__ import annotations

import csv
import io
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fewfed.report.table import Spread, rich_table, rows, to_csv
from fewfed.runs.results import Accuracy, Result, summarise


def result(seed: int = 0, accuracy: tuple[float, ...] = (0.5, 0.25, 0.375), failed: int = 0) -> Result:
    return Result(
        method="any",
        preset="paper",
        data="digits",
        split="iid",
        clients=4,
        rounds=2,
        seed=seed,
        accuracy=Accuracy(*accuracy),
        bytes={"up": 2_000_000 * (seed + 1), "down": 500_000},
        steps=10 * (seed + 1),
        seconds=1.5,
        folder="somewhere",
        failed=failed,
        validation=Accuracy(0.6, 0.2, 0.3, 0.6) if len(accuracy) > 3 else None,
    )


def shown(table: object, width: int) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_a_spread_is_mean_and_sample_deviation(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.mean == pytest.approx(statistics.mean(values))
    expected = statistics.stdev(values) if len(values) > 1 else 0
    assert spread.deviation == pytest.approx(expected, abs=1e-12)


def test_one_row_a_method_in_order_of_appearance() -> None:
    made = rows([("b", result(0)), ("a", result(0)), ("b", result(1, failed=2))])
    assert [(row.method, row.seeds, row.failed) for row in made] == [("b", 2, 2), ("a", 1, 0)]
    assert made[0].mb_up == pytest.approx(3.0)
    assert made[0].steps == 15


def test_the_csv_holds_fractions() -> None:
    made = rows([("b", result(0, (0.5, 0.4, 0.3))), ("b", result(1, (0.7, 0.6, 0.5)))])
    (row,) = csv.DictReader(io.StringIO(to_csv(made)))
    assert float(row["best_mean"]) == pytest.approx(0.6)
    assert float(row["last10_sd"]) == pytest.approx(statistics.stdev([0.3, 0.5]), abs=1e-6)
    assert row["seeds"] == "2"


def test_all_three_accuracies_and_the_seeds_are_shown() -> None:
    text = shown(rich_table(rows([("flea", result())]), "a title"), 120)
    for part in ("a title", "best", "last", "last 10", "seeds", "50.0", "25.0", "37.5", "flea"):
        assert part in text


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "sem(flea:official)"])
def test_a_terminal_of_80_columns_shows_every_number_and_the_whole_name(name: str) -> None:
    text = shown(rich_table(rows([(name, result(0)), (name, result(1))]), "title"), 80)
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    for part in ("50.0", "25.0", "37.5", "3.0", "0.5", "15"):
        assert part in text
    first_column = "".join(line[:12].split("  ")[0].strip() for line in text.splitlines()[4:])
    assert name[:8] in first_column


def test_failures_get_a_column_only_where_there_are_any() -> None:
    assert "left out" not in shown(rich_table(rows([("a", result())]), "t"), 120)
    assert "left out" in shown(rich_table(rows([("a", result(failed=1))]), "t"), 120)


def test_the_summary_of_rounds() -> None:
    record = {"accuracy": 0.5, "bytes": {"up": 3, "down": 4}, "steps": 5, "seconds": 0.5, "failed": [1]}
    unevaluated = {name: value for name, value in record.items() if name != "accuracy"}
    assert summarise([record, unevaluated, {**record, "accuracy": 0.25}]) == {
        "accuracy": Accuracy(0.5, 0.25, 0.375),
        "bytes": {"up": 9, "down": 12},
        "steps": 15,
        "seconds": 1.5,
        "failed": 3,
    }


def test_a_result_read_back_is_the_same() -> None:
    assert Result.from_json(result().as_json()) == result()


VALIDATED = (0.5, 0.25, 0.375, 0.4375)


def test_the_accuracy_of_best_validation_has_a_column_where_runs_have_validation_rows() -> None:
    plain, validated = [("a", result())], [("b", result(0, VALIDATED)), ("b", result(1, VALIDATED))]
    assert "best valid." not in shown(rich_table(rows(plain), "t"), 120)
    text = shown(rich_table(rows(validated + plain), "t"), 120)
    assert "best valid." in text
    assert "43.8 ± 0.0" in text
    table = list(csv.DictReader(io.StringIO(to_csv(rows(validated + plain)))))
    assert [row["best_validation_mean"] for row in table] == ["0.437500", ""]
    assert [row["best_validation_sd"] for row in table] == ["0.000000", ""]


def test_that_column_fits_into_80_columns_too() -> None:
    text = shown(rich_table(rows([("fedavg", result(seed, VALIDATED)) for seed in (0, 1)]), "title"), 80)
    assert "…" not in text
    assert all(len(line) <= 80 for line in text.splitlines())
    for part in ("50.0", "25.0", "37.5", "43.8", "15"):
        assert part in text


def test_a_result_with_validation_rows_read_back_is_the_same() -> None:
    given_result = result(0, VALIDATED)
    assert Result.from_json(given_result.as_json()) == given_result
    assert "validation" not in result().as_json()
    assert set(result().as_json()["accuracy"]) == {"best", "last", "last10"}


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.1, 0.2, 0.3])), min_size=1, max_size=15))
def test_the_summary_has_the_test_accuracy_of_the_first_round_that_is_best_on_validation(
    curve: list[tuple[float, float]],
) -> None:
    rest = {"bytes": {"up": 0}, "steps": 1, "seconds": 1.0, "failed": []}
    records = [{"accuracy": test, "validation": {"accuracy": own}, **rest} for test, own in curve]
    chosen_test, chosen_own = 0.0, -1.0
    for test, own in curve:  # The paper's released code: a later round must be better.
        if own > chosen_own:
            chosen_test, chosen_own = test, own
    found = summarise(records)
    assert found["accuracy"].best_validation == chosen_test
    assert found["validation"].best == found["validation"].best_validation == chosen_own
    assert found["validation"].last == curve[-1][1]
