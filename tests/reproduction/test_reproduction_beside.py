"""One run fills two cells of a table only where the other run would have come to the same numbers, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from small_study import write_study

from fewfed.reproduction.beside import answers, as_if_alone, needed
from fewfed.reproduction.kept import Kept, Record
from fewfed.reproduction.library import Library
from fewfed.reproduction.session import Session
from fewfed.reproduction.study import Study
from fewfed.runs.cells import explained_plainly
from fewfed.runs.packing import Packing

METHODS = '["flea", "averaged(flea)", "ccvr", "ccvr(averaged(fedavg))", "fedavg", "potluck", "potluck, no average"]'
TEXT = f"""
name = "beside"
what = "methods, each also averaged"
paper = "none"
seeds = 1

[common]
network = "mlp"
cohort = 3
rounds = 3
epochs = 1
batch = 16
executor = "sequential"

[method.potluck]
k = 1

[method."potluck, no average"]
use = "potluck"
k = 1
decay = 0.0

[[block]]
data = "digits"
split = "qua:2"
clients = 6
methods = {METHODS}
"""


def study_of(folder: Path, text: str = TEXT, name: str = "beside") -> Study:
    return Library(write_study(folder / "reproduce", text, name=name)).study(name)


def session(study: Study, folder: Path, methods: set[str]) -> Session:
    runs = [run for run in study.runs if run.at["method"] in methods]
    return Session(study, runs, folder / "runs", Kept(folder / "kept"), "abc")


def worked(going: Session) -> list[str]:
    cells = going.cells(1.0)
    going.work(cells, Packing(1), lambda update: None, explained_plainly, 1.0)
    return [cell.name for cell in cells]


def names(records: Mapping[str, Record]) -> set[str]:
    return {name.split("clients6-")[1] for name in records}


def test_who_answers_for_whom(tmp_path: Path) -> None:
    """An average answers for the method inside, and for nobody that does something else around it."""
    study = study_of(tmp_path)
    method = {run.name: run.at["method"] for run in study.runs}
    found = {method[name]: {method[answer.run.name] for answer in each} for name, each in answers(study.runs).items()}
    assert found == {"averaged(flea)": {"flea"}, "potluck": {"potluck, no average"}}
    assert {method[run.name] for run in needed(study.runs, study.runs)} == {
        "averaged(flea)", "ccvr", "ccvr(averaged(fedavg))", "fedavg", "potluck",
    }  # fmt: skip
    alone = [run for run in study.runs if run.at["method"] == "flea"]
    assert needed(study.runs, alone) == alone, "nobody answers who does not go"


def test_another_seed_or_other_training_is_another_run(tmp_path: Path) -> None:
    two = study_of(tmp_path, TEXT.replace("seeds = 1", "seeds = 2"))
    assert all(each.run.at["seed"] == by.at["seed"] for by in two.runs for each in answers(two.runs).get(by.name, ()))
    longer = TEXT + '\n[[set]]\nwhen = { method = "flea" }\nepochs = 2\n'
    study = study_of(tmp_path / "longer", longer)
    assert {answer.run.at["method"] for each in answers(study.runs).values() for answer in each} == {
        "potluck, no average"
    }


@pytest.mark.parametrize("extra", ["", "validation = 0.2\n"], ids=["test rows", "validation rows too"])
def test_a_cell_that_was_answered_for_is_what_its_own_run_comes_to(tmp_path: Path, extra: str) -> None:
    text = TEXT.replace("[common]\n", f"[common]\n{extra}")
    if extra:
        text = text.replace("seeds = 1", 'seeds = 1\nmetric = "validation.accuracy"')
    study = study_of(tmp_path, text)
    wanted = {"flea", "averaged(flea)", "potluck", "potluck, no average"}
    together = session(study, tmp_path / "together", wanted)
    assert len(worked(together)) == 2
    both = together.kept.fitting(study) if together.kept else {}
    assert names(both) == {
        "flea-seed0", "averaged-flea-seed0", "potluck-seed0", "potluck-no-average-seed0",
    }  # fmt: skip
    for plain in ("flea", "potluck, no average"):
        alone = session(study, tmp_path / plain, {plain})
        (name,) = worked(alone)
        mine = alone.kept.fitting(study)[name].outcome if alone.kept else None
        assert mine is not None
        told = dataclasses.replace(both[name].outcome, seconds=mine.seconds)
        assert told == mine
        assert both[name].made["in"] != name, "a record says which run it was had from"
        assert {run.name for run, _ in together.finished()} == both.keys()


def test_a_finished_average_answers_without_being_run_again(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    assert len(worked(session(study, tmp_path, {"averaged(flea)"}))) == 1
    again = dataclasses.replace(session(study, tmp_path, {"flea", "averaged(flea)"}), kept=None)
    assert {run.at["method"] for run, _ in again.finished()} == {"flea", "averaged(flea)"}
    assert again.cells(1.0) == []


def test_rounds_without_the_other_model_answer_for_nobody() -> None:
    scored: dict[str, Any] = {
        "round": 1, "accuracy": 0.5, "per_class": [0.1], "beside": {"unaveraged": {"accuracy": 0.25}},
    }  # fmt: skip
    blank = {"round": 2, "seconds": 1.0}
    assert as_if_alone([scored, blank], "unaveraged") == [{"round": 1, "accuracy": 0.25}, blank]
    assert as_if_alone([scored, {"round": 2, "accuracy": 0.5}], "unaveraged") is None
    assert as_if_alone([scored], "somebody") is None


def test_a_record_of_equal_settings_serves_other_studies_and_one_of_others_does_not(tmp_path: Path) -> None:
    first, kept = study_of(tmp_path), Kept(tmp_path / "kept")
    assert worked(session(first, tmp_path, {"fedavg"}))
    second = study_of(tmp_path, TEXT.replace('"beside"', '"second"'), "second")
    assert names(kept.fitting(second)) == {"fedavg-seed0"}
    other = study_of(tmp_path, TEXT.replace('"beside"', '"third"').replace("epochs = 1", "epochs = 2"), "third")
    assert kept.fitting(other) == {}
    judged = TEXT.replace('"beside"', '"fourth"').replace("seeds = 1", 'seeds = 1\nmetric = "loss"')
    assert kept.fitting(study_of(tmp_path, judged, "fourth")) == {}, "it was judged by something else"
    terms = TEXT.replace('"beside"', '"fifth"').replace("seeds = 1", 'seeds = 1\nterms = ["correlation"]')
    assert kept.fitting(study_of(tmp_path, terms, "fifth")) == {}, "it did not measure what that table shows"
