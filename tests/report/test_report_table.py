"""The table of a comparison: means and deviations over seeds, every number readable."""

from __future__ import annotations

import csv
import io
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fewfed.metric import METRICS
from fewfed.report.table import Spread, rich_table, rows, to_csv
from fewfed.runs.results import Result, Summary, summarise


def result(
    seed: int = 0,
    accuracy: tuple[float, ...] = (0.5, 0.25, 0.375),
    failed: int = 0,
    metric: str = "accuracy",
    judged: Summary | None = None,
) -> Result:
    return Result(
        method="any",
        preset="paper",
        data="digits",
        split="iid",
        clients=4,
        rounds=2,
        seed=seed,
        accuracy=Summary(*accuracy),
        bytes={"up": 2_000_000 * (seed + 1), "down": 500_000},
        steps=10 * (seed + 1),
        seconds=1.5,
        folder="somewhere",
        failed=failed,
        validation=Summary(0.6, 0.2, 0.3, 0.6) if len(accuracy) > 3 else None,
        metric=metric,
        judged=judged,
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
    expected = pytest.approx(statistics.stdev(values), abs=1e-12) if len(values) > 1 else None
    assert spread.deviation == expected


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
        "accuracy": Summary(0.5, 0.25, 0.375),
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


def test_with_one_seed_no_deviation_is_shown() -> None:
    alone = rows([("a", result(0)), ("b", result(0))])
    text = shown(rich_table(alone, "t"), 120)
    assert "±" not in text
    assert "accuracy in %, one seed; MB of a whole run" in text
    (first, _) = csv.DictReader(io.StringIO(to_csv(alone)))
    assert (first["best_mean"], first["best_sd"], first["last_sd"], first["last10_sd"]) == ("0.500000", "", "", "")
    both = shown(rich_table(rows([("a", result(0)), ("b", result(0)), ("b", result(1))]), "t"), 120)
    assert "mean ± standard deviation over seeds" in both
    assert [line.count("±") for line in both.splitlines() if line.split()[:1] in (["a"], ["b"])] == [0, 3]


LOSS = Summary(0.123456, 1.5, 1.25)


def test_a_table_is_of_the_chosen_metric_and_says_which() -> None:
    judged = Summary(0.875, 0.75, 0.8125)
    made = rows([("flea", result(metric="macro_f1", judged=judged))])
    text = shown(rich_table(made, "t"), 120)
    assert "macro F1 in %, one seed" in text
    for part in ("87.5", "75.0", "81.2"):
        assert part in text
    assert "37.5" not in text, "the accuracy"
    (row,) = csv.DictReader(io.StringIO(to_csv(made)))
    assert (row["metric"], row["best_mean"], row["last10_mean"]) == ("macro_f1", "0.875000", "0.812500")
    assert next(csv.DictReader(io.StringIO(to_csv(rows([("a", result())])))))["metric"] == "accuracy"


def test_names_in_brackets_are_no_colours() -> None:
    """A data set may be called after any file."""
    text = shown(rich_table(rows([("a[bold]", result())]), "wards[/b] and [red]"), 120)
    assert "wards[/b] and [red]" in text
    assert "a[bold]" in text


def test_a_loss_of_any_size_fits_into_its_column() -> None:
    spread = Spread.of([1e30, 3e30])
    assert spread.shown(METRICS["loss"]) == "2e+30 ±1.41e+30"
    assert Spread.of([0.5]).shown(METRICS["loss"]) == "0.500"


def test_a_loss_is_no_percentage_and_the_lowest_leads() -> None:
    better = Summary(0.1, 0.2, 0.15)
    table = rich_table(
        rows([("a", result(metric="loss", judged=LOSS)), ("b", result(metric="loss", judged=better))]), "t"
    )
    text = shown(table, 120)
    assert "0.123" in text
    assert "1.250" in text
    assert "loss, one seed; lower is better" in text
    assert [str(row.style) for row in table.rows] == ["", "bold"]


def test_runs_that_are_judged_differently_are_not_averaged() -> None:
    made = rows([("a", result(0)), ("a", result(1, metric="loss", judged=LOSS))])
    assert [(row.method, row.metric, row.seeds) for row in made] == [("a", "accuracy", 1), ("a", "loss", 1)]
    table = rich_table(made, "t")
    assert [str(row.style) for row in table.rows] == ["bold", "bold"]
    text = shown(table, 120)
    assert "accuracy in %, loss, one seed; lower is better (loss)" in text


def test_a_result_with_another_metric_read_back_is_the_same_and_an_older_one_is_of_accuracy() -> None:
    given_result = result(metric="loss", judged=LOSS)
    assert given_result.chosen == LOSS
    assert given_result.as_json()["chosen"] == {"best": 0.123456, "last": 1.5, "last10": 1.25}
    assert Result.from_json(given_result.as_json()) == given_result
    older = {name: value for name, value in result().as_json().items() if name not in ("metric", "chosen")}
    assert Result.from_json(older) == result()
    assert Result.from_json(older).chosen == result().accuracy


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1), st.integers(1, 3)), min_size=1, max_size=15))
def test_the_summary_of_a_metric_that_is_better_lower(curve: list[tuple[float, float, int]]) -> None:
    rest = {"bytes": {"up": 0}, "steps": 1, "seconds": 1.0, "failed": []}
    records = [
        {"accuracy": right, "loss": loss, "validation": {"accuracy": 0.5, "loss": own}, **rest}
        for loss, right, own in curve
    ]
    found = summarise(records, "loss")
    losses, rights, own = zip(*curve, strict=True)
    chosen = own.index(min(own))
    assert (found["judged"].best, found["judged"].last) == (min(losses), losses[-1])
    assert found["judged"].best_validation == losses[chosen]
    assert found["accuracy"].best == max(rights)
    assert found["accuracy"].best_validation == rights[chosen], "of the same round"
    assert found["validation"].best == min(own)


def test_a_round_without_a_number_is_never_the_best() -> None:
    rest = {"bytes": {"up": 0}, "steps": 1, "seconds": 1.0, "failed": []}
    records = [{"accuracy": 0.1, "loss": loss, **rest} for loss in (math.nan, 3.0, 2.0, math.nan)]
    assert summarise(records, "loss")["judged"].best == 2.0
