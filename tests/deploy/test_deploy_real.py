"""Federations of real processes: a coordinator, five sites, TLS on loopback; also while they are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation import NAMES, difference
from real import Real
from test_deploy_equality import AVERAGING, METHODS, MORE, assert_agree, rows_handed_on, simulated, written

from fewfed.deploy.site.secret import FILE
from fewfed.engine import storage
from fewfed.runs.folder import CHECKPOINT, MODEL, RunFolder


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    made = Real(tmp_path_factory.mktemp("federation"))
    made.start_sites()
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(real: Real) -> Path:
    """FLea for eight rounds, with nothing in its way: what runs with faults must come to as well."""
    real.serve("undisturbed", "flea", 8)
    return real.finished("undisturbed")


def assert_same_run(found: Path, reference: Path) -> None:
    """The same model, bit for bit, and the same metrics in every round."""
    for name in (MODEL, CHECKPOINT):
        assert difference(storage.load(found / name)[0], storage.load(reference / name)[0]) == 0.0
    ours, theirs = RunFolder(found).metrics(), RunFolder(reference).metrics()
    for mine, other in zip(ours, theirs, strict=True):
        for name in ("round", "failed", "steps", "accuracy", "per_group", "loss"):
            assert mine[name] == other[name]


def assert_turns(real: Real, out: str, again: int) -> None:
    """Every site took every turn, and at most so many of them twice."""
    run = real.run_of(out)
    for name in NAMES:
        turns = real.turns(name, run)
        assert len(set(turns)) == 8 * 2 + 3
        assert len(turns) - len(set(turns)) <= again, turns


@pytest.mark.parametrize("method", METHODS)
def test_processes_and_a_simulation_agree(method: str, real: Real, tmp_path: Path) -> None:
    reference = simulated(method, tmp_path)
    out = f"equal-{METHODS.index(method)}"
    real.serve(out, method)
    found = real.finished(out)
    for name in (MODEL, CHECKPOINT):
        assert difference(storage.load(found / name)[0], storage.load(reference / name)[0]) < 1e-5
    for mine, other in zip(RunFolder(found).metrics(), RunFolder(reference).metrics(), strict=True):
        assert mine["failed"] == other["failed"] == []
        assert mine["per_group"] == pytest.approx(other["per_group"])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Sites with several rows of a class."""
    made = Real(tmp_path_factory.mktemp("three"), *MORE)
    made.start_sites()
    yield made
    made.close()


@pytest.mark.thorough
@pytest.mark.parametrize("method", AVERAGING)
def test_processes_that_send_averages_and_a_simulation_agree(method: str, three: Real, tmp_path: Path) -> None:
    reference = simulated(method, tmp_path, rounds=3, cohort=3, settings=AVERAGING[method], sites=MORE)
    out = f"averages-{list(AVERAGING).index(method)}"
    three.serve(out, method, 3, more=written(AVERAGING[method]), quorum=3)
    found = three.finished(out)
    assert_agree(found, reference)
    assert rows_handed_on(found)


@pytest.mark.thorough
def test_noise_that_stays_is_the_same_after_a_site_was_killed(three: Real) -> None:
    """Each site's own secret makes it, in this run and in the next; nothing else of these runs is left to chance."""
    for out in ("noise", "noise-killed"):
        three.serve(out, "blurred(flea)", 3, more=written({"noise": 2.0, "fresh": 0.0}), quorum=3)
        if out == "noise-killed":
            three.wait_round(out, 1)
            three.kill("birch")
            three.start_site("birch")
        three.finished(out)
    assert_same_run(three.folder / "noise-killed", three.folder / "noise")
    secrets = [(three.folder / "state" / name / FILE).read_bytes() for name in three.names]
    assert len(set(secrets)) == 3
    logs = "".join(three.log(who) for who in (*three.names, "noise", "noise-killed"))
    assert not any(secret[:32].hex() in logs or str(secret[:32]) in logs for secret in secrets)


def test_a_site_is_killed_and_comes_back(real: Real, undisturbed: Path) -> None:
    real.serve("site-killed", "flea", 8)
    for round, name in ((2, "cedar"), (5, "amber")):
        real.wait_round("site-killed", round)
        real.kill(name)
        real.start_site(name)
    assert_same_run(real.finished("site-killed"), undisturbed)
    assert_turns(real, "site-killed", 1)


def test_the_coordinator_is_killed_and_resumed(real: Real, undisturbed: Path) -> None:
    real.serve("coordinator-killed", "flea", 8)
    for round in (2, 5):
        real.wait_round("coordinator-killed", round)
        real.kill("coordinator-killed")
        real.serve("coordinator-killed", resume=True)
    found = real.finished("coordinator-killed")
    assert_same_run(found, undisturbed)
    assert_turns(real, "coordinator-killed", 0)
    assert json.loads((found / "federation.json").read_text())["attempt"] == 2


def test_the_superlink_is_killed(real: Real, undisturbed: Path) -> None:
    real.serve("link-killed", "flea", 8)
    for round in (2, 5):
        real.wait_round("link-killed", round)
        os.kill(real.superlink("link-killed"), signal.SIGKILL)
    assert_same_run(real.finished("link-killed"), undisturbed)
    assert_turns(real, "link-killed", 0)
    assert "started again" in real.log("link-killed")


def test_a_site_that_stands_still_for_a_while(real: Real, undisturbed: Path) -> None:
    real.serve("site-stopped", "flea", 8)
    real.wait_round("site-stopped", 3)
    os.kill(real.processes["delta"].pid, signal.SIGSTOP)
    time.sleep(5)
    os.kill(real.processes["delta"].pid, signal.SIGCONT)
    assert_same_run(real.finished("site-stopped"), undisturbed)
    assert_turns(real, "site-stopped", 0)


def test_everything_is_killed_at_once(real: Real, undisturbed: Path) -> None:
    real.serve("all-killed", "flea", 8)
    real.wait_round("all-killed", 4)
    for who in ("all-killed", *NAMES):
        real.kill(who)
    real.start_sites()
    real.serve("all-killed", resume=True)
    assert_same_run(real.finished("all-killed"), undisturbed)
    assert_turns(real, "all-killed", 1)


def test_strangers_are_not_let_in_and_sums_are_masked(real: Real) -> None:
    """A site of another federation that calls itself by a known name, while a run under masks goes on."""
    made = real.fewfed("certs", "other-keys", "--server", "127.0.0.1", "--sites", "amber,mallory")
    assert made.returncode == 0, made.stderr
    for who, name, key in (("impostor", "amber", "other-keys/sites/amber"), ("mixed", "amber", "mixed")):
        if who == "mixed":  # The right authority and roster, but keys of somebody else.
            shutil.copytree(real.folder / "keys/sites/amber", real.folder / "mixed")
            shutil.copy(real.folder / "other-keys/sites/amber/node.key", real.folder / "mixed/node.key")
        real.start(
            who, "site", "--data", "amber.npz", "--test-column", "held", "--name", name, "--key", key,
            "--server", f"127.0.0.1:{real.port}", "--state", f"state/{who}",
        )  # fmt: skip
    real.serve("masked", "fedavg", 2, federation="secure = true")
    found = real.finished("masked")
    assert [record["failed"] for record in RunFolder(found).metrics()] == [[], []]
    assert "certificate" in real.log("impostor").lower()
    assert "joined" not in real.log("impostor")
    assert real.processes["mixed"].wait(60) == 2
    assert "node key" in real.log("mixed")
    real.processes.pop("impostor").kill()


def test_the_folder_is_one_of_any_run(real: Real, undisturbed: Path) -> None:
    shown = real.fewfed("show", "undisturbed")
    assert shown.returncode == 0, shown.stderr
    assert "flea" in shown.stdout
    predicted = real.fewfed("predict", "undisturbed", "--data", "amber.npz")
    assert predicted.returncode == 0, predicted.stderr
    exported = real.fewfed("export", "undisturbed", "--to", "torchscript", "--out", "exported")
    assert exported.returncode == 0, exported.stderr
    status = real.fewfed("status", "undisturbed", "--json")
    assert status.returncode == 0, status.stderr
    found = json.loads(status.stdout.splitlines()[-1])
    assert found["state"] == "finished"
    assert found["round"] == found["rounds"] == 8
    assert found["sites"].keys() == set(NAMES)
    assert all(site["joined"] and site["received_bytes"] > 0 for site in found["sites"].values())
    assert all(name in status.stdout for name in NAMES)
    verdict = real.fewfed("verify", "undisturbed")
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


def test_nothing_is_written_into_the_home(real: Real, undisturbed: Path) -> None:
    home = real.folder / "home"
    assert [path for path in home.rglob("*") if path.is_file()] == []
