"""Attackers and defences as settings of a run: said everywhere, part of what a run is, refused where they cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fewfed import Experiment, Training, compare, resume, run
from fewfed.adversaries.known import ATTACKS
from fewfed.errors import ConfigError, RunError
from fewfed.privacy.statement_text import plain
from fewfed.report.overview import overview
from fewfed.report.survey import survey
from fewfed.runs.experiment import Resolved, resolve
from fewfed.runs.explained import explained
from fewfed.runs.folder import RunFolder
from fewfed.runs.prepare import prepare
from run_support import SHORT, SMALL, assert_same_end, called, killed_after, records, small

Capture = pytest.CaptureFixture[str]
ATTACKED = {"attack": "boost", "attackers": "0.3", "attack_scale": 20.0}
DEFENDED = {"robust": "trimmed", "robust_attackers": 2.0, "norm_bound": "50x"}


def prepared(method: str = "fedavg", **values: Any) -> Any:
    usual = {"data": "digits", "network": "mlp", "clients": 6, "cohort": 6, "rounds": 3, "executor": "sequential"}
    return prepare(resolve(method, {**usual, **values}))


def test_a_run_says_who_attacked_and_how_it_was_combined(tmp_path: Path) -> None:
    result = run("fedavg", small(cohort=6, **ATTACKED, **DEFENDED), SHORT, out=tmp_path / "run")
    assert result.note.endswith(
        "2 of 6 clients attack (boost, scale 20); combined by the trimmed mean, 2 of the clients cut off at each end; "
        "changes longer than 50 times the median refused"
    )
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())
    assert Resolved.from_json(recorded).experiment.attackers == "0.3"
    assert RunFolder(tmp_path / "run").result() == result.as_json()
    shown = str(overview(survey([tmp_path])))
    assert "attack" in shown
    assert "boost" in shown


def test_a_table_says_it_too(tmp_path: Path) -> None:
    table = compare(["fedavg", "fedprox"], small(rounds=1, **ATTACKED), SHORT, seeds=1, out=tmp_path, jobs=1)
    assert "2 of 6 clients attack (boost, scale 20)" in str(table)
    assert all("2 of 6 clients attack" in row["note"] for row in table.table)


def test_runs_without_attackers_say_nothing_of_them(tmp_path: Path) -> None:
    result = run("fedavg", small(rounds=1), SHORT, out=tmp_path / "run")
    assert "attack" not in result.note
    assert "attack" not in str(overview(survey([tmp_path])))
    job = prepared().job
    assert job.defence is None
    assert job.adversary is None


def test_attackers_are_drawn_from_the_seed_for_every_method_alike() -> None:
    one, other, another = (
        prepared(method, attackers="0.5", attack="sign-flip", seed=seed).job.adversary.clients
        for method, seed in (("fedavg", 3), ("flea", 3), ("fedavg", 4))
    )
    assert one == other != another
    assert len(one) == len(another) == 3
    listed = prepared(attackers="0,2-3", attack="sign-flip").job.adversary.clients
    assert listed == {0, 2, 3}


@pytest.mark.parametrize("executor", ["sequential", "workers"])
def test_a_killed_run_ends_as_if_nothing_had_happened(tmp_path: Path, executor: str) -> None:
    changes = {"attack": "noise", "attackers": "1,4", "robust": "median", "row_filter": 1.5, "row_margin": 1.0}
    settings = small(rounds=4, cohort=5, checkpoint_seconds=0.0, executor=executor, exact=True, **changes)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run("flea", settings, SHORT, out=whole)
    killed_after(2, killed, lambda halt: run("flea", settings, SHORT, out=killed, observers=[halt]))
    resume(killed)
    assert_same_end(killed, whole)
    other = "workers" if executor == "sequential" else "sequential"
    run("flea", small(**{**vars(settings), "executor": other}), SHORT, out=tmp_path / "other")
    assert_same_end(tmp_path / "other", whole)
    assert any("defended" in phase for record in records(whole) for phase in record["phases"].values())


@pytest.mark.parametrize(
    "change", [{"attackers": "2"}, {"attack": "noise"}, {"attack_scale": 3.0}, {"robust": "median"}]
)
def test_they_are_a_part_of_what_a_run_is(tmp_path: Path, change: dict[str, Any]) -> None:
    values = {"attack": "boost", "attackers": "1"}
    run("fedavg", small(rounds=1, **values), SHORT, out=tmp_path / "run")
    with pytest.raises(RunError):
        run("fedavg", small(rounds=1, **{**values, **change}), SHORT, out=tmp_path / "run")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nobody": ({"attack": "boost"}, "attackers is not set: expected who attacks and how"),
    "no attack": ({"attackers": "0.2"}, "attack is not set: expected who attacks and how"),
    "strength alone": ({"attack_scale": 2}, "attack_scale is set, but nobody attacks"),
    "no strength": ({"attack": "label-flip", "attackers": "1", "attack_scale": 2}, "has no strength: leave"),
    "too few": ({"attack": "boost", "attackers": "0.01"}, "of 6 clients are 0: expected a part between 0 and 1"),
    "too many": ({"attack": "boost", "attackers": "0.99"}, "of 6 clients are 6: expected a part"),
    "beyond one": ({"attack": "boost", "attackers": "1.5"}, "expected a part between 0 and 1"),
    "everybody": ({"attack": "boost", "attackers": "0-5"}, "are all 6 clients: expected some honest ones"),
    "no such client": ({"attack": "boost", "attackers": "6"}, "expected numbers from 0 to 5 .* a part of all"),
    "words": ({"attack": "boost", "attackers": "some"}, "expected numbers from 0 to 5"),
    "dots": ({"attack": "boost", "attackers": "..."}, "expected numbers from 0 to 5"),
    "no rows": ({"attack": "row-labels", "attackers": "1"}, "has no target: expected rows that are shared with their"),
    "no attack of that name": ({"attack": "bost", "attackers": "1"}, "attack = 'bost': expected"),
    "no rule of that name": ({"robust": "mean"}, "robust = 'mean': expected"),
    "clip without clipped": ({"robust": "median", "robust_clip": "2x"}, "robust_clip is set, but robust is median"),
    "attackers of median": ({"robust": "median", "robust_attackers": 1}, "robust_attackers is set, but robust is"),
    "half a client": ({"robust": "krum", "robust_attackers": 1.5}, "expected a fraction below 1 or a whole number"),
    "odd clip": ({"robust": "clipped", "robust_clip": "median"}, "robust_clip = 'median': expected a length above 0"),
    "odd bound": ({"norm_bound": "-3"}, "norm_bound = '-3': expected a length above 0"),
    "margin alone": ({"row_margin": 1.1}, "row_margin is set, but no rows are filtered"),
    "filter without rows": ({"row_filter": 2}, "row_filter has nothing to work on: clients of method 'fedavg' send no"),
    "small cohort": ({"robust": "krum", "cohort": 4}, "robust = krum has 4 clients in phase 'train', which is not"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_before_anything_is_written(case: str) -> None:
    values, why = REFUSED[case]
    with pytest.raises(ConfigError, match=why):
        prepared(**values)


@pytest.mark.parametrize("method", ["single", "local"])
@pytest.mark.parametrize("attack", ["label-flip", "sign-flip", "row-features"])
def test_nobody_attacks_where_nothing_leaves_a_client(method: str, attack: str) -> None:
    with pytest.raises(ConfigError, match=f"attack '{attack}' has no target"):
        prepared(method, attack=attack, attackers="1")


def test_the_program_refuses_in_a_sentence(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, said = called(capsys, monkeypatch, "run", "fedavg", *SMALL, "--robust", "krum")
    assert code == 2
    assert "expected at least 5" in said
    assert "Traceback" not in said
    assert not list(tmp_path.iterdir())


def test_flags_and_settings_say_the_same(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ("--cohort", "6", "--robust", "multi-krum", "--norm-bound", "9x", "--set", "robust_attackers=1")
    attack = ("--attack", "sign-flip", "--attackers", "0.2", "--executor", "sequential", "--out", str(tmp_path / "one"))
    code, text, _ = called(capsys, monkeypatch, "run", "fedavg", *SMALL, *flags, *attack)
    assert code == 0
    assert "1 of 6 clients attack (sign-flip, scale 1); combined by multi-krum" in text
    settings = {
        "robust": "multi-krum",
        "robust_attackers": 1.0,
        "norm_bound": "9x",
        "attack": "sign-flip",
        "attackers": "0.2",
    }
    run("fedavg", small(cohort=6, **settings), Training(epochs=1), out=tmp_path / "two")
    assert_same_end(tmp_path / "one", tmp_path / "two")


def test_the_leak_of_honest_rows_is_measured_beside_attackers_and_filters(tmp_path: Path) -> None:
    values = {"attack": "row-features", "attackers": "1,4", "row_filter": 1.2, "clients": 12, "cohort": 12}
    result = run("flea", small(**values), SHORT, values={"share": 0.5}, out=tmp_path / "run")
    found = RunFolder(tmp_path / "run").metrics()
    left_out = [
        phase["defended"]["rows_left_out"]
        for record in found
        for phase in record["phases"].values()
        if "defended" in phase
    ]
    assert any({"1", "4"} & set(rows) for rows in left_out)
    assert result.leak is not None
    assert result.leak.rows > 0


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "uses only the mean over them. Secure aggregation could hide single values"),
        (
            {"robust": "krum", "robust_attackers": 1},
            "(krum (one client's packet alone), 1 of the clients may be attackers)",
        ),
        ({"norm_bound": "3x", "attack": "noise", "attackers": "1"}, "(changes longer than 3 times the median refused)"),
    ],
)
def test_what_leaves_a_site_is_said_to_be_compared(values: dict[str, Any], said: str) -> None:
    text = plain(explained(prepared(**values)))
    assert said in text
    assert ("could not hide single values" in text) == bool(values)


def test_settings_name_every_attack_and_every_rule() -> None:
    from typing import get_args, get_type_hints

    from fewfed.runs.robustness import RULES

    hints = get_type_hints(Experiment)
    assert get_args(hints["attack"]) == ("none", *ATTACKS)
    assert get_args(hints["robust"]) == ("none", *RULES)
