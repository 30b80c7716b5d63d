"""What surrounds attacks: which apply, how a run is opened, what is said and written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from attack_support import Sends, case_of, digit_sites, silent
from typer.testing import CliRunner

import fewfed
from fewfed import Training
from fewfed.cli.app import app
from fewfed.conformance.reference import job_for
from fewfed.errors import ConfigError, FewfedError, RunError
from fewfed.methods.registry import registered
from fewfed.phase import Clock
from fewfed.privacy.attacks.applicable import applicable
from fewfed.privacy.attacks.attack import Tell
from fewfed.privacy.attacks.case import Case
from fewfed.privacy.attacks.finding import Finding, Measure, Threat
from fewfed.privacy.attacks.opening import Effort, open_case
from fewfed.privacy.attacks.registry import attacks, chosen
from fewfed.privacy.attacks.running import FILE, FOLDER, attacked, write
from fewfed.privacy.shared_rows import row_upload
from fewfed.runs.own import NOTHING
from run_support import small

OWN = Threat("a test", "nothing", "nothing")


@dataclass(frozen=True)
class Pretended:
    """An attack that finds what it is told."""

    name: str
    title: str = "a test"
    why: str = ""
    error: str = ""
    value: float = 0.5

    def why_not(self, case: Case) -> str:
        return self.why

    def findings(self, case: Case, tell: Tell) -> list[Finding]:
        if self.error:
            raise RunError(self.error)
        tell("works")
        measure = Measure("guessed", self.value, 0.4, 0.6, 10, 0.1, 1.0)
        return [Finding(self.name, "", OWN, 3, "share/../x", (measure,), "", b"\x89PNG")]


@pytest.fixture(scope="module")
def case() -> Case:
    return case_of(Sends(), clients=digit_sites(3, 20))


def test_attacks_on_rows_apply_exactly_where_rows_are_sent() -> None:
    for name in registered():
        job = job_for(name)
        phases = tuple(phase for round in range(4) for phase in job.method.phases(Clock(round, 4, 2)))
        found = applicable(phases)
        for attack in ("reconstruct", "context", "property"):
            assert (attack in found) == any(row_upload(phase) for phase in phases), name
            assert attack not in found or "phase '" in found[attack]
        assert set(attacks()) <= {"reconstruct", "context", "property", *found, *ALL}


ALL = ("membership", "gradient", "labels", "inversion", "information")


def test_attacks_are_found_by_name_and_a_wrong_name_is_a_sentence() -> None:
    assert [each.name for each in chosen(["property", "reconstruct"])] == ["reconstruct", "property"]
    assert chosen([]) == tuple(attacks().values())
    for name, attack in attacks().items():
        assert attack.name == name
        assert attack.title
    with pytest.raises(ConfigError, match="did you mean 'reconstruct'"):
        chosen(["reconstuct"])


def test_one_attack_that_fails_costs_no_other_and_no_zero_is_printed(case: Case, tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    several = [Pretended("a"), Pretended("b", why="there is nothing"), Pretended("c", error="broke"), Pretended("d")]
    found = attacked(tmp_path, case, several, lambda done, words: told.append((done, words)))
    assert [one.attack for one in found.findings] == ["a", "d"]
    assert {one.attack: one.why for one in found.does_not_apply} == {
        "b": "there is nothing",
        "c": "it could not be run: broke",
    }
    assert (0, "a: works") in told
    assert told[-1] == (4, "")
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_findings_are_written_beside_those_of_other_attacks(case: Case, tmp_path: Path) -> None:
    first = write(attacked(tmp_path, case, [Pretended("a", value=0.1), Pretended("b"), Pretended("c", why="no")]))
    write(attacked(tmp_path, case, [Pretended("a", value=0.9)]))
    there = json.loads(first.read_text())
    assert {one["attack"]: one["measures"][0]["value"] for one in there["findings"]} == {"b": 0.5, "a": 0.9}
    assert [one["attack"] for one in there["does_not_apply"]] == ["c"]
    one = there["findings"][-1]
    assert one["threat"] == {"who": "a test", "sees": "nothing", "holds": "nothing"}
    assert (tmp_path / FOLDER / one["picture"]).read_bytes() == b"\x89PNG"
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == sorted(
        [FILE, *{one["picture"] for one in there["findings"]}]
    )
    for damage in (b"{", b"[]", b'{"findings": 3, "does_not_apply": [1]}', b"[" * 5000):
        first.write_bytes(damage)
        write(attacked(tmp_path, case, [Pretended("a")]))
        assert len(json.loads(first.read_text())["findings"]) == 1


def test_odd_wishes_are_sentences() -> None:
    for wrong in ({"effort": 0.0}, {"effort": float("nan")}, {"seed": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Effort(**wrong)  # type: ignore[arg-type]
    with pytest.raises(FewfedError, match="CUDA"):
        Effort(device="cuda:0").chosen_device()


def recorded(folder: Path, *more: str) -> list[str]:
    small = ["--clients", "12", "--cohort", "6", "--rounds", "2", "--epochs", "1", "--record", "packets"]
    return ["run", "flea", *small, "--set", "share=0.5", "--out", str(folder), *more]


def test_a_recorded_run_is_attacked_from_the_command_line_and_from_a_program(tmp_path: Path) -> None:
    pytest.importorskip("fewfed.privacy.record", reason="runs cannot be recorded here")
    run, folder = CliRunner(), tmp_path / "run"
    assert run.invoke(app, recorded(folder)).exit_code == 0
    done = run.invoke(app, ["attack", str(folder), "property", "context", "--effort", "0.2", "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert {one["attack"] for one in found["findings"]} == {"property", "context"}
    assert {one["round"] for one in found["findings"]} == {2}
    assert "sees" in done.stdout
    again = fewfed.attack(folder, ["property"], effort=0.2, rounds=[1], device="cpu", progress=False)
    assert {one.round for one in again.findings} == {1}
    there = json.loads((folder / FOLDER / FILE).read_text())
    assert {(one["attack"], one["round"]) for one in there["findings"]} == {("context", 2), ("property", 1)}
    with pytest.raises(RunError, match="round 7 was not recorded"):
        fewfed.attack(folder, rounds=[7])
    config = json.loads((folder / "config.json").read_text())
    assert config["method"] == "flea", "the run itself is as it was"


def test_a_run_without_packets_is_refused_with_the_way_to_have_them(tmp_path: Path) -> None:
    pytest.importorskip("fewfed.privacy.record", reason="runs cannot be recorded here")
    folder = tmp_path / "run"
    fewfed.run("fedavg", {"clients": 6, "cohort": 3, "rounds": 1}, {"epochs": 1}, out=folder, progress=False)
    with pytest.raises(RunError, match="--record"):
        fewfed.attack(folder)


def test_own_objects_are_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("fewfed.privacy.record", reason="runs cannot be recorded here")
    from fewfed.conformance.clients import digits

    train, test = digits()
    own = fewfed.Dataset("mine", train, test, 10)
    folder = tmp_path / "run"
    experiment = {"clients": 6, "cohort": 6, "rounds": 1, "record": "packets"}
    fewfed.run("flea", experiment, {"epochs": 1}, data=own, out=folder, progress=False)
    with pytest.raises(RunError, match=r"objects of your own program.*data="):
        fewfed.attack(folder, "property")
    assert fewfed.attack(folder, "property", data=own, progress=False).findings
    other = fewfed.Dataset("mine", train.rows(train.y.argsort()), test, 10)
    with pytest.raises(RunError, match="other data"):
        fewfed.attack(folder, "property", data=other)


def test_nobody_is_told_where_nobody_listens() -> None:
    assert silent("words") is None


def test_a_damaged_record_is_attacked_by_nobody(tmp_path: Path) -> None:
    """An attack that could not read what was sent must not look like one that found nothing."""
    folder = tmp_path / "run"
    chosen = fewfed.Experiment(network="mlp", clients=3, cohort=2.0, rounds=1, executor="sequential", record="packets")
    fewfed.run("fedavg", chosen, fewfed.Training(epochs=1), out=folder)
    packet = next((folder / "packets").rglob("client-*.packet"))
    content = packet.read_bytes()
    packet.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(RunError, match=r"is damaged: .*; 1 packets are so"):
        fewfed.attack(folder, "labels", effort=0.01)
    packet.unlink()
    with pytest.raises(RunError, match="1 packets are so"):
        fewfed.attack(folder, "labels", effort=0.01)


@pytest.mark.parametrize("device", ["tpu", "meta", "cpu:7", "cuda:99", "a b"])
def test_a_device_that_is_not_here_is_a_sentence(device: str) -> None:
    with pytest.raises(ConfigError, match="device = "):
        Effort(device=device).chosen_device()


@pytest.mark.parametrize("spec", ["flea", "quantised(flea)"])
def test_a_round_in_which_a_policy_kept_all_rows_back_is_not_attacked(tmp_path: Path, spec: str) -> None:
    (tmp_path / "policy.toml").write_text("most_releases_of_row = 1\n")
    chosen = small(rounds=3, cohort=6.0, record="packets", record_rounds="all", policy=str(tmp_path / "policy.toml"))
    fewfed.run(spec, chosen, Training(epochs=1), out=tmp_path / "run", progress=False)
    found = fewfed.attack(tmp_path / "run", ["reconstruct", "membership"], effort=0.05, progress=False)
    rows = [one for one in found.findings if one.attack == "reconstruct" or one.variant == "nearest shared row"]
    assert rows
    assert {one.round for one in rows} == {1}


def test_what_simulated_attackers_sent_is_nobodys(tmp_path: Path) -> None:
    """Rows that somebody made up are no proof of what can be had from those who made up nothing."""
    lies = {"attack": "row-features", "attackers": "0,1,2"}
    found = {}
    for name, changes in (("honest", {}), ("lying", lies)):
        chosen = small(rounds=1, cohort=6.0, record="packets", **changes)
        fewfed.run("flea", chosen, Training(epochs=1), out=tmp_path / name, progress=False)
        (one,) = fewfed.attack(tmp_path / name, ["information"], effort=0.05, progress=False).findings
        case = open_case(tmp_path / name, Effort(0.05), NOTHING)
        senders = {client for exchanged in case.exchanges() for client in exchanged.packets}
        found[name] = (senders, one.measures[0].rows)
    assert found["honest"][0] == set(range(6))
    assert found["lying"][0] == {3, 4, 5}
    assert found["lying"][1] < found["honest"][1]
    everybody = small(rounds=1, cohort=6.0, record="packets", record_clients="0-2", **lies)
    fewfed.run("flea", everybody, Training(epochs=1), out=tmp_path / "all", progress=False)
    nothing = fewfed.attack(tmp_path / "all", effort=0.05, progress=False)
    assert not any(one.measures for one in nothing.findings)
    assert len(nothing.does_not_apply) == len(attacks())
