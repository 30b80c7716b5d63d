"""`fewfed advise` on data with a known best answer, within its time, whatever the data are like."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fewfed
from fewfed.report.advice import ADVICE
from fewfed.runs.advice import PLAN, RUNS, SEARCH
from run_support import Outcome, called

QUICK = ("--minutes", "3", "--rounds", "6", "--seeds", "3", "--lr", "0.01", "--network", "mlp")
COMMAND = (sys.executable, "-m", "fewfed")


class Advise:
    """The command, in this process."""

    def __init__(self, call: Callable[..., Outcome]) -> None:
        self._call = call

    def refused(self, *words: object) -> str:
        """What it says instead of advice."""
        code, out, err = self._call("advise", *map(str, words))
        assert code == 2, (out, err)
        assert "Traceback" not in err
        return err

    def __call__(self, *words: object) -> dict[str, Any]:
        """What it finds."""
        code, out, err = self._call("advise", *map(str, words), "--json")
        assert code == 0, (out, err)
        said: dict[str, Any] = json.loads(out.splitlines()[-1])
        return said


@pytest.fixture
def advise(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Advise:
    return Advise(partial(called, capsys, monkeypatch))


def saved(place: Path, x: np.ndarray, y: np.ndarray, site: np.ndarray) -> Path:
    np.savez(place, x=x.astype(np.float32), y=y, site=site)
    return place


def linear(sites: int, rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of a common linear rule, the same at all sites."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(sites * rows, columns))
    y = (x @ random.normal(size=columns) > 0).astype(np.int64)
    return x, y, np.repeat(np.arange(sites), rows)


def test_where_all_sites_are_alike_the_plain_average_is_enough(tmp_path: Path, advise: Advise) -> None:
    place = saved(tmp_path / "alike.npz", *linear(8, 40, 25))
    said = advise("fedmix", "flea", "--data", place, "--out", tmp_path / "out", *QUICK)
    assert said["recommended"] == "fedavg"
    assert said["judged_on"] == "own"
    assert not said["look"]["is_skewed"]
    methods = {row["method"]: row for row in said["methods"]}
    assert methods["fedavg"]["validation"] > methods["local"]["validation"] + 0.02
    up = {name: row["bytes_up_a_round"] for name, row in methods.items()}
    assert 0 < up["local"] < up["fedavg"] / 50 < up["flea"] / 50  # Alone, only sums for scaling inputs.
    assert methods["flea"]["leak_r2"] is not None
    assert methods["fedavg"]["leak_r2"] is None


def test_where_every_site_has_a_rule_of_its_own_training_together_does_not_pay(tmp_path: Path, advise: Advise) -> None:
    x, y, site = linear(6, 60, 4)
    place = saved(tmp_path / "apart.npz", x, np.where(site % 2, 1 - y, y), site)
    said = advise("flea", "--data", place, "--out", tmp_path / "out", *QUICK)
    assert said["recommended"] == "local"
    assert any("Training together does not pay here" in line for line in said["reasons"])
    assert "--cohort 6" in said["commands"]["train it"]


def test_the_level_of_guessing_is_that_of_the_rows_that_decide(tmp_path: Path, advise: Advise) -> None:
    """Nothing can be learned. Of all rows half are of either class; at five of six sites one class has nine tenths."""
    random = np.random.default_rng(0)
    sizes, parts = [200, *[30] * 5], [0.5, 0.9, 0.1, 0.9, 0.1, 0.9]
    y = np.concatenate([np.arange(size) < part * size for size, part in zip(sizes, parts, strict=True)])
    x, site = random.normal(size=(len(y), 4)), np.repeat(np.arange(6), sizes)
    place = saved(tmp_path / "noise.npz", x, y.astype(np.int64), site)
    said = advise("--data", place, "--out", tmp_path / "out", *QUICK)
    assert said["judged_on"] == "own"
    assert said["look"]["commonest"] < 0.6
    assert said["guessing"] == pytest.approx((0.5 + 5 * 0.9) / 6, abs=0.08)
    told = " ".join(said["reasons"])
    assert "Do not rely on it yet: always answering the commonest class, of all sites or each site's own" in told
    assert "One site holds 57% of all rows: every site counts alike in these numbers all the same" in told


def test_learning_rates_are_chosen_by_what_is_measured(tmp_path: Path, advise: Advise) -> None:
    """Balanced accuracy is not measured site by site: it is that of all rows that chooses, and own rows are refused."""
    place = saved(tmp_path / "alike.npz", *linear(4, 40, 10))
    words = ("fedprox", "--data", place, "--metric", "balanced_accuracy", *QUICK[:3], "3", "--seeds", 1)
    said = advise(*words, "--network", "mlp", "--out", tmp_path / "out")
    assert said["judged_on"] == "all"
    trials = {}
    for records in (tmp_path / "out" / SEARCH).glob("*/fedavg-seed0/metrics.jsonl"):
        last = json.loads(records.read_text().splitlines()[-1])
        trials[records.parents[1].name.removeprefix("training.lr-")] = last["validation"]["balanced_accuracy"]
    assert len(trials) == 3
    rates = {row["method"]: row["lr"] for row in said["methods"]}
    assert trials[f"{rates['fedavg']:g}"] == max(trials.values()) > trials["0.001"]
    assert "judge = own: this metric is not measured" in advise.refused(*words, "--judge", "own", "--out", tmp_path)


def test_where_digits_are_few_and_skewed_something_that_shares_helps(tmp_path: Path, advise: Advise) -> None:
    said = advise(
        "fedmix", "feddata", "--share", "inputs", "--data", "digits", "--split", "qua:2", "--clients", 20,
        "--cohort", 5, "--epochs", 2, "--batch", 16, "--out", tmp_path / "out", *QUICK[:3], "15", *QUICK[4:],
    )  # fmt: skip
    assert said["recommended"] in ("fedmix", "feddata")
    assert said["judged_on"] == "all"
    assert said["look"]["is_skewed"]


def test_runs_are_ordinary_ones_and_the_same_command_has_nothing_left_to_do(tmp_path: Path, advise: Advise) -> None:
    place, out = saved(tmp_path / "alike.npz", *linear(4, 20, 5)), tmp_path / "out"
    words = ("fedmix", "--data", place, "--out", out, "--minutes", 2, "--rounds", 3, "--seeds", 2, "--lr", 0.01)
    first = advise(*words)
    assert json.loads((out / ADVICE).read_text())["recommended"] == first["recommended"]
    shown = str(fewfed.show(out))
    assert "fedmix" in shown
    assert "local" in shown
    results = {path: path.stat().st_mtime_ns for path in (out / RUNS).glob("*/result.json")}
    assert len(results) == 6
    again = advise(*words)
    assert {path: path.stat().st_mtime_ns for path in results} == results
    timed = ("seconds", "methods")
    assert {name: again[name] for name in again if name not in timed} == {
        name: first[name] for name in first if name not in timed
    }
    assert "other questions" in advise.refused(*words, "--epochs", 1)
    assert "other questions" in advise.refused("flea", *words[1:])


def test_results_of_other_data_do_not_pass_for_those_of_the_data_that_are_asked_about(
    tmp_path: Path, advise: Advise
) -> None:
    x, y, site = linear(4, 20, 5)
    place = saved(tmp_path / "rows.npz", x, y, site)
    words = ("--share", "model", "--data", place, "--out", tmp_path / "out", *QUICK[:3], 1, "--seeds", 1, "--lr", 0.01)
    advise(*words)
    saved(place, x, 1 - y, site)
    assert "was started with other data (the content of its files has changed)" in advise.refused(*words)


def test_the_commands_it_prints_are_understood(
    tmp_path: Path, advise: Advise, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = saved(tmp_path / "odd name's.npz", *linear(3, 20, 5))
    said = advise("--data", place, "--out", tmp_path / "out", "--share", "model", "--set", "lr_decay=0.01",
                 *QUICK[:3], "2", "--seeds", 1, "--network", "mlp", "--lr", 0.01)  # fmt: skip
    for command in said["commands"].values():
        words = shlex.split(command)
        assert words[0] == "fewfed"
        assert str(place) in words
        assert "lr_decay=0.01" in words
    words = shlex.split(said["commands"]["what leaves a site"])[1:]
    assert called(capsys, monkeypatch, *words)[0] == 0


@pytest.mark.parametrize(("judge", "command"), [("auto", "advise"), ("all", "compare")])
def test_looking_longer_measures_what_was_decided_by(
    judge: str, command: str, tmp_path: Path, advise: Advise, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A table of `compare` is of the rows of all sites: where every site has a rule of its own, what is best at home
    looks worst there, and the cohort of who trains alone is not that of the others."""
    x, y, site = linear(4, 40, 5)
    place = saved(tmp_path / "odd.npz", x, np.where(site % 2, y, 1 - y), site)
    said = advise("--data", place, "--out", tmp_path / "out", "--judge", judge, "--set", "experiment.cohort=2", *QUICK,
                  "--set", "validation=0.3")  # fmt: skip
    words = shlex.split(said["commands"]["look longer"])[1:]
    assert words[0] == command
    assert words[words.index("--cohort") + 1] == "2"
    assert words.count("--cohort") == 1
    if command == "advise":
        assert said["recommended"] == "local"
        assert shlex.split(said["commands"]["train it"]).count("--cohort") == 1
        assert said["settings"]["cohort"] == 4
        assert "experiment.cohort" not in said["settings"]
        words[words.index("--seeds") + 1] = "2"
        assert called(capsys, monkeypatch, *words)[0] == 0
        longer = json.loads((tmp_path / "out-longer" / ADVICE).read_text())
        assert longer["judged_on"] == "own"
        assert longer["recommended"] == "local"


def test_the_time_is_kept_and_what_was_left_out_is_said(tmp_path: Path) -> None:
    data = ("--data", "digits", "--split", "qua:2", "--clients", "40")
    began = time.monotonic()
    subprocess.run([*COMMAND, "split", *data], capture_output=True, check=True)
    starting = time.monotonic() - began  # What Python and the data take by themselves, on a machine that may be busy.
    began = time.monotonic()
    words = ("advise", *data, "--minutes", "0.4", "--out", str(tmp_path / "out"))
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True)
    assert time.monotonic() - began < 24 + 10 + 3 * starting
    if done.returncode == 2:  # So busy that nothing was finished: it says so in one sentence.
        assert "the same command goes on" in done.stderr
    else:
        assert "no time for it: more --minutes" in done.stdout
        assert done.returncode == 0


def test_a_kill_in_the_middle_costs_only_what_was_going_on(tmp_path: Path) -> None:
    place, out = saved(tmp_path / "alike.npz", *linear(4, 20, 5)), tmp_path / "out"
    words = ["advise", "fedmix", "--data", str(place), "--out", str(out), "--minutes", "3", "--rounds", "40", "--seeds",
             "2", "--lr", "0.01", "--json"]  # fmt: skip
    begun = subprocess.Popen([*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waited = time.monotonic()
    while not list((out / RUNS).glob("*/result.json")) and begun.poll() is None and time.monotonic() - waited < 120:
        time.sleep(0.05)
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait()
    kept = {path: path.stat().st_mtime_ns for path in (out / RUNS).glob("*/result.json")}
    plan = (out / PLAN).read_bytes()
    assert kept
    said = json.loads(subprocess.run([*COMMAND, *words], capture_output=True, text=True).stdout.splitlines()[-1])
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert (out / PLAN).read_bytes() == plan
    assert said["seeds"] == [0, 1]
    assert not said["unfinished"]


def table(place: Path, rows: list[tuple[Any, ...]]) -> Path:
    with place.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "sick", "clinic"])
        writer.writerows(rows)
    return place


TABLE = ("--label", "sick", "--site", "clinic", *QUICK[:3], "2", "--seeds", "1", "--lr", "0.01")


def test_missing_values_and_a_class_of_one_site_are_no_obstacle(tmp_path: Path, advise: Advise) -> None:
    random = np.random.default_rng(0)
    rows = [(random.normal(), "" if number % 7 == 0 else random.normal(), "yes" if number % 2 else "no",
             f"c{number % 3}") for number in range(90)]  # fmt: skip
    rows += [(random.normal(5), 0.0, "rare <b>", "c1") for _ in range(10)]
    place = table(tmp_path / "table.csv", rows)
    said = advise("fedmix", "--data", place, "--missing", "mean", "--out", tmp_path / "out", *TABLE)
    assert said["look"]["single_holder"] == ["rare <b>"]
    assert said["look"]["sites"] == 3


def test_two_rows_a_site_are_enough_to_say_something(tmp_path: Path, advise: Advise) -> None:
    random = np.random.default_rng(0)
    rows = [
        (random.normal(), random.normal(), "yes" if number % 2 else "no", f"c{number // 3}") for number in range(60)
    ]
    said = advise("--data", table(tmp_path / "table.csv", rows), "--out", tmp_path / "out", "--share", "model", *TABLE)
    assert said["look"]["smallest"] <= 2
    assert said["recommended"]


def test_sites_of_one_row_are_not_told_to_do_without_validation(tmp_path: Path, advise: Advise) -> None:
    """Which advice cannot, and which nobody asked for."""
    table = tmp_path / "three.csv"
    table.write_text("a,b,y,s\n1,2,0,n\n1,3,1,o\n2,2,0,o\n")
    said = advise.refused("--data", table, "--label", "y", "--site", "s", "--out", tmp_path / "out")
    assert "expected sites with at least two rows" in said
    assert "no validation" not in said


def test_one_site_alone_is_told_that_there_is_nobody_to_train_with(tmp_path: Path, advise: Advise) -> None:
    random = np.random.default_rng(0)
    rows = [(random.normal(), random.normal(), "yes" if number % 2 else "no", "only") for number in range(40)]
    said = advise.refused("--data", table(tmp_path / "table.csv", rows), "--out", tmp_path / "out", *TABLE)
    assert "has one site, which has nobody to train with" in said
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_written_is_the_reason_and_not_the_time(tmp_path: Path, advise: Advise) -> None:
    place = saved(tmp_path / "alike.npz", *linear(3, 20, 5))
    (tmp_path / "file").touch()
    said = advise.refused("--data", place, "--out", tmp_path / "file" / "out", *QUICK)
    assert said.endswith("/file/out/.probe': Not a directory; choose another --out\n")
    assert "minutes" not in said


def test_what_is_wrong_with_the_plain_average_is_said_and_not_that_time_is_short(
    tmp_path: Path, advise: Advise
) -> None:
    """Numbers that overflow where all sites add theirs up."""
    x, y, site = linear(3, 20, 5)
    place = saved(tmp_path / "huge.npz", 1e37 * x, y, site)
    said = advise.refused("--data", place, "--out", tmp_path / "out", *QUICK)
    assert "minutes" not in said


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "inf", "1e9"])
def test_a_time_that_is_none_is_refused(minutes: str, tmp_path: Path, advise: Advise) -> None:
    said = advise.refused("--data", "digits", "--minutes", minutes, "--out", tmp_path / "out")
    assert "expected a number above 0 and at most 20000" in said


def test_masks_are_advised_on_too(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(24, 1, 16, 16)).astype(np.float32)
    every = fewfed.Dataset(
        "masks", fewfed.Examples(x[:16], (x[:16, 0] > 0).astype(np.int64)),
        fewfed.Examples(x[16:], (x[16:, 0] > 0).astype(np.int64)), 2, task="segmentation",
    )  # fmt: skip
    advice = fewfed.advise(
        {"split": "iid", "clients": 4, "cohort": 2, "rounds": 1, "metric": "dice"}, {"epochs": 1, "lr": 0.01},
        data=every, minutes=2, share="model", seeds=1, out=tmp_path / "out", progress=False,
    )  # fmt: skip
    assert advice.recommended in ("local", "fedavg")
    assert "Labels are masks" in str(advice)


def test_the_door_for_programs_says_the_same(tmp_path: Path) -> None:
    x, y, site = linear(3, 20, 5)
    place = saved(tmp_path / "alike.npz", x, y, site)
    advice = fewfed.advise(
        {"rounds": 2, "network": "mlp"}, {"lr": 0.01}, data=place, methods=["fedmix"], minutes=2, seeds=2,
        out=tmp_path / "out", progress=False,
    )  # fmt: skip
    text, page = str(advice), advice._repr_html_()
    assert f"Recommended: {advice.recommended}" in text
    assert "<table>" in page
    assert "Recommended" in page
    assert {row["method"] for row in advice.table} == {"local", "fedavg", "fedmix"}
    assert advice.settings["rounds"] == 2
    assert sum(row["recommended"] for row in advice.table) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--minutes", "0"), "minutes = 0"),
        (("--minutes", "nan"), "minutes = nan"),
        (("--share", "everything"), "level of what may leave a site"),
        (("--judge", "mine"), "choice of rows"),
        (("--judge", "own"), "judge = own"),
        (("--set", "validation=0"), "validation = 0"),
        (("--rounds", "0"), "rounds"),
        (("nobody",), "nobody"),
        (("--metric", "speed"), "speed"),
        (("--network", "no.py:build"), "no.py"),
    ],
)
def test_a_wrong_question_is_answered_in_a_sentence(
    words: tuple[str, ...], said: str, tmp_path: Path, advise: Advise
) -> None:
    output = advise.refused("--data", "digits", "--clients", 4, "--out", tmp_path / "out", *words)
    assert said in output
    assert "Traceback" not in output
    assert not (tmp_path / "out").exists()


BROKEN = """
from dataclasses import dataclass
from fewfed.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Broken(FedAvg):
    name = "broken"

    def loss(self, work, ctx, batch):
        raise ValueError("out of order")
"""


def test_a_method_that_fails_costs_no_advice(tmp_path: Path, advise: Advise) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    place = saved(tmp_path / "alike.npz", *linear(3, 20, 5))
    words = (
        tmp_path / "broken.py",
        "--data",
        place,
        "--out",
        tmp_path / "out",
        *QUICK[:3],
        "2",
        "--seeds",
        1,
        "--lr",
        0.01,
    )
    for _ in range(2):  # The second time its plan is there, and no method is tried out.
        said = advise(*words)
        assert "first rounds failed" in said["not_tried"]["broken"]
        assert {row["method"] for row in said["methods"]} == {"local", "fedavg"}


def test_a_damaged_plan_is_a_sentence(tmp_path: Path, advise: Advise) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / PLAN).write_text("{")
    assert "is damaged" in advise.refused("--data", "digits", "--clients", 4, "--out", out)
