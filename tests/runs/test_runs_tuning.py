"""A search gives every method the same budget, never looks at test rows, and chooses what the validation rows say."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewfed.errors import ConfigError, RunError
from fewfed.report.tuned import chosen_of, told, trials_of
from fewfed.runs.cells import Update
from fewfed.runs.packing import Packing
from fewfed.runs.results import Result, Summary
from fewfed.runs.tuning import Axis, Search, axes_of, best, search

TINY = {"data": "digits", "network": "mlp", "clients": 5, "cohort": 2, "rounds": 2, "epochs": 1}


def searched(
    methods: Sequence[str], axes: Mapping[str, Sequence[Any]], root: Path = Path("t"), **options: Any
) -> Search:
    return search(methods, TINY, [Axis(name, tuple(values)) for name, values in axes.items()], root=root, **options)


def result(validation: float, test: float = 0.0, metric: str = "accuracy") -> Result:
    curve = Summary(test, test, test)
    held = Summary(validation, validation, validation)
    return Result(
        "m", "paper", "digits", "iid", 5, 2, 0, curve, {}, 1, 1.0, "f", validation=held, metric=metric,
        judged=None if metric == "accuracy" else curve,
    )  # fmt: skip


def ended(found: Search, scores: Mapping[str, float], metric: str = "accuracy") -> list[Update]:
    """Endings in which a run's validation score is that of its setting; a test score says the opposite."""
    return [
        Update(cell, 2, result=result(scores[trial_of(found, cell.name)], -scores[trial_of(found, cell.name)], metric))
        for cell in found.cells
        if trial_of(found, cell.name) in scores
    ]


def trial_of(found: Search, cell: str) -> str:
    trial = next(trial for trial in found.trials if cell in [one.name for one in trial.runs.cells])
    return ",".join(f"{name}={value}" for name, value in trial.values.items())


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z_.]{0,8}", fullmatch=True),
        st.lists(st.from_regex(r"[A-Za-z0-9.:-]{1,6}", fullmatch=True), min_size=1, max_size=4, unique=True),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 4),
)
def test_what_is_written_is_what_is_searched(axes: dict[str, list[str]], cut: int) -> None:
    parts = [f"{name}={','.join(values)}" for name, values in axes.items()]
    texts = [text for text in (",".join(parts[:cut]), ",".join(parts[cut:])) if text]
    assert {axis.name: list(axis.values) for axis in axes_of(texts)} == axes


@given(st.lists(st.text(max_size=12), max_size=3))
def test_any_text_is_a_search_or_a_sentence(texts: list[str]) -> None:
    with contextlib.suppress(ConfigError):
        assert all(axis.name and axis.values for axis in axes_of(texts))


def test_every_method_gets_the_same_number_of_trials() -> None:
    found = searched(["fedavg", "fedprox", "flea"], {"lr": [1e-3, 1e-2], "fedprox.mu": [0.1, 1, 10]}, most=2)
    assert {spec: len(found.of(spec)) for spec in found.methods} == {"fedavg": 2, "fedprox": 2, "flea": 2}
    whole = searched(["fedavg", "fedprox"], {"lr": [1e-3, 1e-2], "fedprox.mu": [0.1, 1, 10]})
    assert {spec: len(whole.of(spec)) for spec in whole.methods} == {"fedavg": 2, "fedprox": 6}
    assert "2 of fedavg, 6 of fedprox" in told(whole)
    assert "2 settings of each method" in told(found)
    assert len({cell.name for cell in whole.cells}) == len({cell.folder for cell in whole.cells}) == 8


def test_runs_of_a_search_hold_rows_back_and_runs_of_the_comparison_do_not() -> None:
    found = searched(["fedavg"], {"lr": [1e-3, 1e-2]}, validation=0.3, seeds=2)
    assert {cell.resolved.experiment.validation for cell in found.cells} == {0.3}
    tried = found.judged(ended(found, {"lr=0.001": 0.1, "lr=0.01": 0.4}))
    final = found.final(tried, 3)
    assert {cell.resolved.experiment.validation for cell in final.cells} == {0.0}
    assert [cell.resolved.training.lr for cell in final.cells] == [0.01] * 3
    assert [cell.resolved.experiment.seed for cell in final.cells] == [0, 1, 2]


@pytest.mark.parametrize(("metric", "winner"), [("accuracy", "0.01"), ("loss", "0.001")])
def test_what_is_best_on_the_validation_rows_is_chosen_whatever_the_test_part_says(metric: str, winner: str) -> None:
    found = searched(["fedavg"], {"lr": ["0.001", "0.01", "0.1"]})
    tried = found.judged(ended(found, {"lr=0.001": 0.1, "lr=0.01": 0.4, "lr=0.1": 0.2}, metric))
    assert best("fedavg", tried).trial.values == {"lr": winner}
    assert chosen_of(found, tried) == {"fedavg": {"lr": winner}}
    assert [row["chosen"] for row in trials_of(found, tried)].count(True) == 1


def test_a_setting_that_failed_or_is_no_number_is_never_chosen() -> None:
    found = searched(["fedavg"], {"lr": ["0.001", "0.01", "0.1"]})
    tried = found.judged(ended(found, {"lr=0.001": 0.1, "lr=0.1": float("nan")}))
    assert [each.score is None for each in tried] == [False, True, False]
    assert best("fedavg", tried).trial.values == {"lr": "0.001"}
    with pytest.raises(RunError, match="no setting of 'fedavg' could be run"):
        best("fedavg", found.judged([]))


@pytest.mark.parametrize(
    ("axes", "values", "sentence"),
    [
        ({"seed": [0, 1]}, {}, "'seed' is no setting of a method"),
        ({"experiment.split": ["iid", "qua:2"]}, {}, "is no setting of a method"),
        ({"epochs": [1, 2]}, {}, "'epochs' is both set and searched"),
        ({"lr": [-1, 1]}, {}, "lr = -1"),
        ({"beta9": [1]}, {}, "unknown field"),
        ({"flea.beta": [1]}, {}, "flea"),
        ({name: list(range(1, 30)) for name in ("lr", "weight_decay", "clip")}, {}, "too many"),
    ],
)
def test_searches_that_make_no_sense_are_refused(
    axes: dict[str, list[Any]], values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        searched(["fedavg", "fedprox"], axes)


def test_a_whole_search_and_its_repetition(tmp_path: Path) -> None:
    found = searched(["fedavg", "scaffold"], {"lr": ["0.001", "0.05"]}, tmp_path, validation=0.5)
    found.refuse_unready()
    told_of: list[str] = []
    endings = found.run(Packing(2), lambda update: told_of.append(update.cell.name))
    tried = found.judged(endings)
    assert all(each.score is not None for each in tried)
    for each in tried:
        (cell,) = each.trial.runs.cells
        lines = [json.loads(line) for line in (cell.folder / "metrics.jsonl").read_text().splitlines()]
        curve = [line["validation"]["accuracy"] for line in lines]
        assert each.score == pytest.approx(sum(curve) / len(curve))
    final = found.final(tried, 1)
    assert {cell.resolved.spec for cell in final.cells} == {"fedavg", "scaffold"}
    told_of.clear()
    again = searched(["fedavg", "scaffold"], {"lr": ["0.001", "0.05"]}, tmp_path, validation=0.5)
    again.refuse_unready()
    assert [each.score for each in again.judged(again.run(Packing(2), lambda _: None))] == [one.score for one in tried]
    other = searched(["fedavg", "scaffold"], {"lr": ["0.001", "0.05"]}, tmp_path, validation=0.4)
    with pytest.raises(RunError, match="holds a run with other settings"):
        other.refuse_unready()


def test_settings_inside_a_composition_can_be_searched(tmp_path: Path) -> None:
    found = search(
        ["mixup(flea)"],
        {**TINY, "flea.beta": "1"},
        axes_of(["flea.share=0.1,0.5", "distil=0"]),
        root=tmp_path / "tune",
    )
    fields = [cell.resolved.values for cell in found.cells]
    assert [str(each["inner.share"]) for each in fields] == ["0.1", "0.5"]
    assert all(str(each["inner.beta"]) == "1" and str(each["inner.distil"]) == "0" for each in fields)
