"""Same command, same machine, same bits: what timing chose once is kept, for this run and for the next like it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fewfed import Experiment, Training, resume, run
from fewfed.engine import storage
from fewfed.engine.choices import Answer
from fewfed.engine.executors.workers import trial
from fewfed.engine.executors.workers.options import Options
from fewfed.engine.own_folder import File
from fewfed.errors import RunError
from fewfed.runs.folder import CHECKPOINT, CHOICES, MODEL
from fewfed.runs.remembered import ChoiceFolder, RememberedChoices
from fewfed.runs.seals import sealed
from run_support import SMALL, Halt, called, forked, killed_after, small
from support import same

WAY = "workers, phase train"


@pytest.fixture(autouse=True)
def timing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A memory of its own for each test, and trials even of short runs. `MARGIN` says which way wins."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(trial, "SHORT", 0.0)
    monkeypatch.setattr(trial, "STEP_LIMIT", 1e9)
    monkeypatch.setattr(trial, "LEAST", 1)
    monkeypatch.setattr(trial, "MARGIN", 1e9)
    return monkeypatch


def chosen(folder: Path) -> str:
    content = json.loads((folder / CHOICES).read_text())
    return str(content[WAY]["answer"]) if WAY in content else "nothing"


TWO_WORKERS = Options(processes=2)


def run_into(
    folder: Path,
    experiment: Experiment | None = None,
    method: str = "fedavg",
    executor: Any = TWO_WORKERS,
    **training: Any,
) -> None:
    run(method, experiment or small(), Training(epochs=1, **training), executor=executor, out=folder)


def same_model(one: Path, other: Path) -> bool:
    return same(storage.load(one / MODEL)[0], storage.load(other / MODEL)[0])


def test_a_repeated_command_ends_with_the_same_bits_although_timing_would_now_say_otherwise(
    timing: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_into(tmp_path / "first")
    timing.setattr(trial, "MARGIN", 0.0)
    run_into(tmp_path / "second")
    timing.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    run_into(tmp_path / "forgotten")
    assert [chosen(tmp_path / name) for name in ("first", "second", "forgotten")] == [
        "side by side",
        "side by side",
        "one by one",
    ]
    assert same_model(tmp_path / "first", tmp_path / "second")
    assert not same_model(tmp_path / "first", tmp_path / "forgotten"), "else this test shows nothing"
    said = json.loads((tmp_path / "second" / "metrics.jsonl").read_text().splitlines()[0])["events"]
    assert said[0]["why"].startswith("as in earlier runs like this one")


@pytest.mark.parametrize(
    ("experiment", "method", "executor", "training"),
    [
        ({"rounds": 4}, "fedavg", TWO_WORKERS, {}),
        ({"cohort": 4.0}, "fedavg", TWO_WORKERS, {}),
        ({"network": "digits-cnn"}, "fedavg", TWO_WORKERS, {}),
        ({}, "fedavg", Options(processes=1), {}),
        ({}, "fedprox", TWO_WORKERS, {}),
        ({}, "fedavg", TWO_WORKERS, {"batch": 8}),
        ({}, "fedavg", TWO_WORKERS, {"optimizer": "sgd"}),
    ],
)
def test_another_run_is_timed_anew(
    timing: pytest.MonkeyPatch, tmp_path: Path, experiment: Any, method: str, executor: Options, training: Any
) -> None:
    run_into(tmp_path / "first")
    timing.setattr(trial, "MARGIN", 0.0)
    timing.setattr(trial, "LAYOUT_MARGIN", 0.0)
    run_into(tmp_path / "other", small(**experiment), method, executor, **training)
    assert chosen(tmp_path / "other") == "one by one"


def test_another_seed_is_the_same_kind_of_run(timing: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_into(tmp_path / "first")
    timing.setattr(trial, "MARGIN", 0.0)
    run_into(tmp_path / "other", small(seed=5))
    assert chosen(tmp_path / "other") == "side by side"


def test_a_resumed_run_keeps_its_own_choice(timing: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_into(tmp_path / "whole")
    folder = tmp_path / "stopped"
    experiment = small(checkpoint_seconds=0.0)
    whole = tmp_path / "whole, checkpoints"
    run_into(whole, experiment)

    def work(halt: Halt) -> None:
        run("fedavg", experiment, Training(epochs=1), executor=TWO_WORKERS, out=folder, observers=[halt])

    killed_after(1, folder, work)
    timing.setattr(trial, "MARGIN", 0.0)
    timing.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    resume(folder)
    assert chosen(folder) == "side by side"
    assert same_model(folder, whole)
    assert same(storage.load(folder / CHECKPOINT)[0], storage.load(whole / CHECKPOINT)[0])


def test_exact_runs_are_those_of_one_process(tmp_path: Path) -> None:
    run_into(tmp_path / "exact", small(exact=True))
    run_into(tmp_path / "reference", executor="sequential")
    assert same_model(tmp_path / "exact", tmp_path / "reference")


def test_runs_of_a_comparison_are_computed_alike_however_many_there_are_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for jobs in ("1", "2"):
        arguments = ("compare", "fedavg", "fedprox", *SMALL, "--jobs", jobs, "--out", str(tmp_path / jobs))
        assert called(capsys, monkeypatch, *arguments)[0] == 0
    for name in ("fedavg-seed0", "fedprox-seed0"):
        assert same_model(tmp_path / "1" / name, tmp_path / "2" / name)
        recorded = [json.loads((tmp_path / jobs / name / CHOICES).read_text()) for jobs in ("1", "2")]
        assert recorded[0] == recorded[1]
        assert recorded[0]["executor"]["answer"] == "sequential"


def test_the_first_of_several_processes_decides(tmp_path: Path) -> None:
    """Each hands in an answer of its own; all must go on with the same one."""
    reading, writing = os.pipe()
    pids = []
    for number in range(12):

        def work(number: int = number) -> None:
            mine = RememberedChoices(
                File.at(tmp_path / f"{number}.json"), {"machine": 1}, [ChoiceFolder(tmp_path / "shared")]
            )
            kept = mine.settle("question", Answer(str(number), "timed"))
            os.write(writing, f"{kept.value} ".encode())

        pids.append(forked(work))
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * 12
    os.close(writing)
    answers = os.read(reading, 1000).split()
    os.close(reading)
    assert len(answers) == 12
    assert len(set(answers)) == 1
    assert not list((tmp_path / "shared").glob("*.part"))


def test_a_damaged_memory_is_written_anew_and_one_that_cannot_be_written_costs_nothing(tmp_path: Path) -> None:
    folder = ChoiceFolder(tmp_path / "shared")
    folder.write("key", {"answer": "a", "why": "timed"})
    (file,) = (tmp_path / "shared").iterdir()
    file.write_text("{")
    assert folder.read("key") is None
    assert folder.write("key", {"answer": "b", "why": "timed"}) == Answer("b", "timed")
    assert folder.read("key") == Answer("b", "timed")
    (tmp_path / "file").write_text("")
    nowhere = ChoiceFolder(tmp_path / "file" / "below")
    assert nowhere.write("key", {"answer": "c", "why": "timed"}) == Answer("c", "timed")


def test_a_damaged_choice_of_a_run_is_one_sentence(tmp_path: Path) -> None:
    forged, _ = sealed({"executor": 3})
    for content in (b"{", b"[]", b'{"executor": 3}', forged):
        (tmp_path / CHOICES).write_bytes(content)
        with pytest.raises(RunError, match=r"choices\.json' is damaged"):
            RememberedChoices(File.at(tmp_path / CHOICES), {})
