"""Whether each sentence of a report is true of the runs it is about: odd runs, one of everything, very many."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewfed
from fewfed.data.splits import SHOWN_CLASSES
from fewfed.report.overview import overview
from fewfed.report.page.contents import Contents, Task, contents
from fewfed.report.page.render import render
from fewfed.report.page.result_part import MOST_SITES
from fewfed.report.survey import look_at, survey
from fewfed.runs.experiment import resolve
from report_support import write_run
from run_support import SHORT, small

NAN, INFINITE = float("nan"), float("inf")


def page_of(*folders: Path) -> Contents:
    return contents(survey(list(folders)))


def task_of(folder: Path) -> Task:
    (task,) = page_of(folder).tasks
    return task


@pytest.mark.parametrize("curve", [[2.0, NAN], [NAN, 2.0], [2.0, INFINITE], [NAN]])
def test_a_run_that_diverged_is_no_damage_and_has_no_mean(tmp_path: Path, curve: list[float]) -> None:
    """A run writes what its loss came to, also where that is no number."""
    write_run(tmp_path / "a", "fedavg", 0, [2.0] * len(curve), metric="loss")
    write_run(tmp_path / "b", "flea", 0, curve, metric="loss")
    found = look_at(tmp_path / "b")
    assert (found.state, found.summary, found.problem) == ("finished", None, "")
    assert [value for _, value in found.curve] == [value for value in curve if np.isfinite(value)]
    page = page_of(tmp_path)
    (remark,) = page.problems
    assert remark.endswith(f"its loss was NaN or infinite in 1 of {len(curve)} evaluations, so that it has no mean")
    (task,) = page.tasks
    assert task.sentences == ("flea came to a loss that is no number and cannot be compared.",)
    assert [cell.text for cell in task.results.rows[1][1:4]] == [""] * 3
    assert "damaged: " not in render(page)
    assert remark in overview(survey([tmp_path])).remarks[0]
    json.dumps(page.as_json(), allow_nan=False)


def test_a_real_run_that_diverged_is_not_called_damaged(tmp_path: Path) -> None:
    """One step with a learning rate far too large: training ends well, and the loss of what it made is NaN."""
    training = {"epochs": 1, "batch": 2000, "lr": 1e9}
    fewfed.run("fedavg", {"clients": 4, "cohort": 2.0, "rounds": 1, "metric": "loss"}, training, out=tmp_path / "run")
    found = look_at(tmp_path / "run")
    assert (found.state, found.without_number, found.summary) == ("finished", 1, None)


def test_means_say_of_how_many_seeds_they_are(tmp_path: Path) -> None:
    for seed, last in enumerate((2.0, NAN, 2.5)):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, [3.0, last], metric="loss")
    (row,) = task_of(tmp_path).results.rows
    assert row[4].text == "2 of 3"
    assert row[2].text == "2.250 ± 0.354"  # By hand, of 2 and 2.5.


def test_a_run_that_diverged_is_not_said_to_be_in_a_mean_and_lines_say_that_it_ends(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, [2.0, 1.0] + [1.0 if seed else NAN] * 10, metric="loss")
    task = task_of(tmp_path)
    assert "the others came to no number, and means are without them" in task.results.note
    assert "as here with" not in task.results.note  # The one that has fewer than ten is in no mean.
    assert task.curves is not None
    assert task.curves.note == "Not all seeds have a number in every round: means are over those that do."
    write_run(tmp_path / "whole" / "a", "fedavg", 0, [2.0, 1.0], metric="loss")
    whole = task_of(tmp_path / "whole")
    assert whole.curves is not None
    assert whole.curves.note == ""
    assert "no number" not in whole.results.note


def test_nothing_is_compared_with_a_baseline_that_diverged_and_it_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [2.0, NAN], metric="loss")
    write_run(tmp_path / "b", "flea", 0, [2.0, 1.0], metric="loss")
    task = task_of(tmp_path)
    assert task.sentences == ("fedavg came to a loss that is no number, so that nothing can be compared with it.",)
    assert task.differences is None


def test_a_seed_on_which_a_method_diverged_is_not_said_to_be_missing(tmp_path: Path) -> None:
    """'Only one of the two has seed 2' would hide the failure behind a win on the others."""
    for seed in range(5):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, [2.0, NAN if seed == 4 else 1.0 + seed], metric="loss")
        write_run(tmp_path / f"b{seed}", "flea", seed, [1.0, NAN if seed in (2, 3) else 0.5 * seed], metric="loss")
    write_run(tmp_path / "b9", "flea", 9, [1.0, 0.5], metric="loss")
    (told,) = task_of(tmp_path).sentences
    flea, fedavg = (f"{name} came to a loss that is no number on seed" for name in ("flea", "fedavg"))
    assert told.endswith(f"; {flea}s 2, 3, and {fedavg} 4, and only one of the two has seed 9, left out.")
    assert "2 of 2 seeds" in told


def test_a_seed_that_is_still_under_way_is_not_said_to_be_missing(tmp_path: Path) -> None:
    for seed in range(4):
        write_run(tmp_path / f"a{seed}", "fedavg", seed, [0.5, 0.6], values={"rounds": 2})
    for seed in range(2):
        write_run(tmp_path / f"b{seed}", "flea", seed, [0.5, 0.7 + 0.1 * seed], values={"rounds": 2})
    write_run(tmp_path / "b2", "flea", 2, [0.5], values={"rounds": 2}, finished=False)
    (told,) = task_of(tmp_path).sentences
    assert told.endswith("; flea has not finished seed 2, and only one of the two has seed 3, left out.")


def test_it_is_said_why_nothing_is_compared_with_the_baseline_that_was_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedprox", 0, [0.5], values={"rounds": 2}, finished=False)
    write_run(tmp_path / "b", "flea", 0, [0.5, 0.6])
    write_run(tmp_path / "c", "fedavg", 0, [0.5, 0.6, 0.7])
    told = [task.sentences for task in contents(survey([tmp_path]), baseline="fedprox").tasks]
    why = "so that nothing can be compared with it."
    assert told == [(f"fedprox has not finished, {why}",), (f"fedprox was not run here, {why}",)]
    assert [task.sentences for task in page_of(tmp_path).tasks] == [(), ()]


def test_there_is_one_of_what_there_is_one(tmp_path: Path) -> None:
    write_run(tmp_path / "a", curve=[0.5], counts=[[3, 0]], values={"split": "qua:1"})
    (described,) = (" ".join(task.described) for task in page_of(tmp_path).tasks)
    assert "each client holds 1 class," in described
    assert "1 client, " in described
    assert ", 1 round;" in described
    assert described.endswith("; one seed.")
    task = task_of(tmp_path)
    assert task.classes is not None
    assert task.split is not None
    assert "over seeds" not in task.classes.said
    assert "on the client, seed 0" in task.split.caption
    write_run(tmp_path / "b", "flea", curve=[0.5], counts=[[3, 0]], values={"split": "qua:1"})
    assert task_of(tmp_path).described[-1].endswith("; one seed each.")


def test_sizes_are_said_to_be_of_a_seed_where_another_has_others(tmp_path: Path) -> None:
    fewfed.compare(["fedavg"], small(rounds=1, split="dir:0.5"), SHORT, seeds=2, out=tmp_path / "runs")
    splits = [json.loads(file.read_text())["sizes"] for file in sorted(tmp_path.glob("runs/*/split.json"))]
    assert splits[0] != splits[1]
    low, high = splits[0]["smallest"], splits[0]["largest"]
    assert task_of(tmp_path / "runs").described[0].endswith(f"({low} to {high}) with seed 0.")
    for seed in range(2):
        write_run(tmp_path / "alike" / f"a{seed}", "fedavg", seed)
    assert task_of(tmp_path / "alike").described[0].endswith("rows a client in the median (3 to 5).")


def test_classes_that_are_not_in_the_picture_are_counted(tmp_path: Path) -> None:
    many = [f"class {number}" for number in range(SHOWN_CLASSES + 10)]
    write_run(tmp_path / "a", classes=many, counts=[[1] * len(many), [2] * len(many)])
    split = task_of(tmp_path).split
    assert split is not None
    assert split.caption.startswith(f"Rows of the first {SHOWN_CLASSES} of {SHOWN_CLASSES + 10} classes on all 2")
    write_run(tmp_path / "b", classes=["a", "b"])
    split = task_of(tmp_path / "b").split
    assert split is not None
    assert split.caption.startswith("Rows of each class on all 2")


def test_sites_that_are_left_out_are_not_called_larger_than_they_are(tmp_path: Path) -> None:
    write_run(tmp_path / "a", sites=[f"site {number}" for number in range(MOST_SITES + 40)])
    sites = task_of(tmp_path).sites
    assert sites is not None
    assert sites.note == f"These are the smallest; all {MOST_SITES + 40} are in the CSV file of this table."
    assert len(sites.csv().splitlines()) == 1 + MOST_SITES + 40


def test_what_is_equal_on_every_seed_is_the_same_in_the_table_too(tmp_path: Path) -> None:
    for seed in range(2):
        for method in ("fedavg", "fedprox"):
            write_run(tmp_path / f"{method}{seed}", method, seed)
    task = task_of(tmp_path)
    assert task.differences is not None
    assert task.sentences == ("fedprox and fedavg came to the same on each of 2 seeds.",)
    assert task.differences.rows[0][1].text == "the same"


def test_a_task_is_called_by_the_rounds_that_were_asked_for(tmp_path: Path) -> None:
    """However far some of its runs have come: a list of tasks would not say which is which."""
    write_run(tmp_path / "a", "fedavg", 0, [0.5, 0.6, 0.7])
    write_run(tmp_path / "b", "flea", 0, [0.5], values={"rounds": 3}, finished=False)
    write_run(tmp_path / "c", "fedavg", 0, [0.5])
    first, second = page_of(tmp_path).tasks
    assert (first.title, second.title) == ("digits, qua:2, 2 clients, 3 rounds", "digits, qua:2, 2 clients, 1 round")


def test_runs_of_the_same_name_are_told_apart_by_the_folder_they_are_in(tmp_path: Path) -> None:
    for place, noise in (("one", 0.0), ("two", 0.5)):
        write_run(tmp_path / place / "fedavg-seed0", values={"noise": noise})
    names = lambda *folders: [row[0].text for row in page_of(*folders).runs.rows]  # noqa: E731
    assert names(tmp_path) == ["one/fedavg-seed0", "two/fedavg-seed0"]
    assert names(tmp_path / "one") == ["fedavg-seed0"]
    assert names(tmp_path / "two", tmp_path / "one") == ["two/fedavg-seed0", "one/fedavg-seed0"]


def test_megabytes_of_a_phase_are_means_over_seeds_as_those_of_the_results_are(tmp_path: Path) -> None:
    for seed, sent in enumerate((1_000_000, 3_000_000)):
        traffic: dict[str, Any] = {
            "bytes": {"up": sent, "down": 0}, "phases": {"train": {"bytes_up": sent}}
        }  # fmt: skip
        write_run(tmp_path / f"a{seed}", "fedavg", seed, [0.5, 0.6], record=traffic)
    task = task_of(tmp_path)
    assert task.leaving is not None
    place = task.results.columns.index("MB up")
    assert task.results.rows[0][place].text == "4.0"
    assert task.leaving.rows[0][2].text == "train 4"
    assert "mean over seeds" in task.leaving.caption


def test_a_model_of_ones_own_is_said_to_be_one(tmp_path: Path) -> None:
    """Its mean on the whole test part is low by nature: a client does not know the classes it has none of."""
    fewfed.compare(["fedavg", "local"], small(rounds=1), SHORT, out=tmp_path / "runs")
    assert "Each client has a model of its own in local: " in task_of(tmp_path / "runs").results.note
    write_run(tmp_path / "a", "fedavg")
    assert "model of its own" not in task_of(tmp_path / "a").results.note


def test_classes_of_masks_have_dice_whatever_the_run_is_judged_by(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((12, 1, 16, 16), dtype=np.float32)
    masks = (x[:, 0] > 0.5).astype(np.int64)
    data = fewfed.Dataset(
        "spots", fewfed.Examples(x[:8], masks[:8]), fewfed.Examples(x[8:], masks[8:]), 2, task="segmentation"
    )
    experiment = {"split": "iid", "clients": 2, "cohort": 2.0, "rounds": 1, "metric": "loss", "network": "unet-small"}
    fewfed.run("fedavg", experiment, SHORT, data=data, out=tmp_path / "masks")
    write_run(tmp_path / "classes", metric="loss", curve=[2.0, 1.0])
    for name, measure in (("masks", "Dice"), ("classes", "Recall")):
        classes = task_of(tmp_path / name).classes
        assert classes is not None
        assert classes.caption.startswith(f"{measure} of each class")


def test_the_end_of_a_line_is_told_apart_from_how_far_its_run_came(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0, [0.5, 0.6, 0.75])
    curves = task_of(tmp_path).curves
    assert curves is not None
    assert curves.told.endswith("At the end, in %: fedavg 75.")
    write_run(tmp_path / "b", "flea", 0, [0.5], values={"rounds": 3}, finished=False)
    curves = task_of(tmp_path).curves
    assert curves is not None
    assert curves.told.endswith("At the end, in %: fedavg 75; flea, unfinished 1/3: 50.")


def test_seeds_that_were_not_run_are_in_no_command(tmp_path: Path) -> None:
    for seed in (0, 2, 3, 7):
        write_run(tmp_path / f"a{seed}", "fedavg", seed)
        write_run(tmp_path / f"b{seed}", "flea", seed)
    found = [line.split("fedavg flea ")[1].partition(" --seed")[2] for line in task_of(tmp_path).commands]
    assert found == ["s 1", " 2 --seeds 2", " 7 --seeds 1"]


def test_options_of_an_executor_that_change_numbers_are_in_the_command(tmp_path: Path) -> None:
    """Of another precision are other runs: two rows, and a command for each."""
    write_run(tmp_path / "a", "fedavg", 0)
    write_run(tmp_path / "b", "fedavg", 0, values={"cuda.precision": "bf16"})
    first, second = task_of(tmp_path).commands
    assert "precision" not in first
    words = shlex.split(second)
    given = dict(words[place + 1].split("=") for place, word in enumerate(words) if word == "--set")
    assert resolve("fedavg", given).as_json()["executors"] == {"cuda": {"precision": "bf16"}}
