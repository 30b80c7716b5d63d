"""`--cells`."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_study import write_study

from fewfed.errors import ConfigError
from fewfed.reproduction.choice import chosen_runs
from fewfed.reproduction.library import Library
from fewfed.reproduction.study import Study


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Library.at(write_study(tmp_path)).study("small")


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 8),
        ("split=iid", 4),
        ("split=iid,qua:2", 8),
        ("split=iid,method=fedavg,seed=1", 1),
        ("seed=0..1", 8),
        ("method=flea, half", 4),
        ("method=fedavg,flea, half,seed=0", 4),
        ("clients=6, split=QUA:2", 4),
    ],
)
def test_runs_that_fit_all_parts(study: Study, text: str, count: int) -> None:
    assert len(chosen_runs(study, text)) == count


def test_ranges_include_both_ends(study: Study) -> None:
    assert [run.at["seed"] for run in chosen_runs(study, "seed=0..1,split=iid,method=fedavg")] == [0, 1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sed=0", "did you mean 'seed'"),
        ("seed=0,meth=fedavg", "did you mean 'method'"),
        ("seed=0..5", "no cell of small has seed=2: expected one of 0, 1"),
        ("seed=3..1", "empty range"),
        ("method=fedprox", "expected one of fedavg, flea, half"),
        ("fedavg", "expected axis=value"),
    ],
)
def test_mistakes(study: Study, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=r".+") as raised:
        chosen_runs(study, text)
    assert sentence in str(raised.value)
