"""`fewfed doctor`: what it says is so, on this machine and on worse ones."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import time
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement as Known

from fewfed.doctor import examination, folders, limits, requirements, torch_here, trying
from fewfed.doctor.finding import Finding
from fewfed.doctor.requirements import PURPOSES, Requirement
from run_support import called, program

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(180)
def test_this_machine_is_well_and_nothing_is_asked_of_the_network(capsys: Capture, monkeypatch: Patch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("nothing is to be sent")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    code, out, err = called(capsys, monkeypatch, "doctor", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out.splitlines()[-1])
    assert found["well"]
    states = {(each["section"], each["topic"]): each for each in found["findings"]}
    assert states["executors", "sequential"]["state"] == "fine"
    assert "with the bits of sequential" in states["executors", "workers"]["says"]
    assert torch.__version__ in states["machine", "torch"]["says"]
    assert "digits" in states["data", "data sets"]["says"]
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"])
    assert {topic for section, topic in states if section == "extras"} <= extras


# Packages.

RELEASES = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda parts: ".".join(map(str, parts)))


@given(RELEASES, st.sampled_from([">=", "<=", "==", "!=", "<", ">"]), RELEASES)
def test_versions_are_compared_as_installers_do(version: str, how: str, wanted: str) -> None:
    text = f"some-thing{how}{wanted}; extra == 'more'"
    ours = Requirement.parsed(text)
    assert (ours.package, ours.extra) == ("some-thing", "more")
    assert ours.allows(version) == Known(text).specifier.contains(version)
    if how in ("==", "!="):
        assert Requirement.parsed(f"a{how}{wanted}.*").allows(version) == Known(f"a{how}{wanted}.*").specifier.contains(
            version
        )


def test_every_requirement_of_this_project_is_understood() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    for text in (
        text for part in (project["dependencies"], *project["optional-dependencies"].values()) for text in part
    ):
        assert Requirement.parsed(text).package == Known(text).name
        assert len(Requirement.parsed(text).clauses) == len(Known(text).specifier)
    assert set(PURPOSES) == set(project["optional-dependencies"])


@pytest.mark.parametrize("text", ["a~=1.0", "a @ file:///x", "a>=1,weird"])
def test_a_requirement_that_is_not_understood_is_not_guessed(text: str) -> None:
    with pytest.raises(ValueError, match=r"understood|no requirement"):
        Requirement.parsed(text)


def looked_at(monkeypatch: Patch, versions: dict[str, str | None]) -> dict[str, Finding]:
    real = metadata.version

    def version(name: str) -> str:
        found = versions[name] if name in versions else real(name)
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)
    return {each.topic: each for each in requirements.look()}


def test_a_missing_extra_says_what_it_is_for_and_what_to_install(monkeypatch: Patch) -> None:
    found = looked_at(monkeypatch, {"matplotlib": None, "ray": "2.59.1", "flwr": "1.40.0"})
    assert found["plot"] == Finding(
        "extras",
        "plot",
        "absent",
        f"matplotlib is not installed (for {PURPOSES['plot']})",
        "pip install 'fewfed[plot]'",
    )
    assert "ray 2.59.1 is installed, ==2.60.* is needed" in found["ray"].says
    assert "flwr 1.40.0 is installed, ==1.41.0 is needed" in found["flower"].says
    assert examination.is_well(list(found.values()))


def test_a_needed_package_that_does_not_fit_is_broken(monkeypatch: Patch) -> None:
    found = looked_at(monkeypatch, {"torch": "2.1.0+cu118"})["needed"]
    assert found.state == "broken"
    assert "torch 2.1.0+cu118 is installed" in found.says
    assert not examination.is_well([found])


def test_sources_that_are_not_installed_are_told(monkeypatch: Patch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    (only,) = requirements.look()
    assert only.state == "limited"


# Cores and memory.


def groups(folder: Path, own: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        (folder / "cg" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "cg" / name).write_text(text)
    (folder / "own").write_text(own)
    return folder / "cg", folder / "own"


def test_limits_of_version_2_count_wherever_above_they_are(tmp_path: Path) -> None:
    place = groups(tmp_path, "0::/a/b\n", {
        "cpu.max": "400000 100000\n", "a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n",
        "a/b/memory.max": "max\n", "a/memory.max": f"{4 << 30}\n", "a/memory.current": f"{3 << 30}\n",
        "a/memory.stat": f"anon 5\ninactive_file {1 << 30}\n",
    })  # fmt: skip
    assert limits.most_cores(*place) == 1.5
    assert limits.memory_left(*place) == 2 << 30


def test_limits_of_version_1_are_read_too(tmp_path: Path) -> None:
    own = "5:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/x\n"
    place = groups(tmp_path, own, {
        "cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": f"{1 << 30}", "memory/memory.usage_in_bytes": f"{1 << 31}",
    })  # fmt: skip
    assert limits.most_cores(*place) == 0.5
    assert limits.memory_left(*place) == 0


@pytest.mark.parametrize("own", ["", "garbage", "0::/../../etc\n", "0::/\n"])
def test_without_limits_nothing_is_limited(own: str, tmp_path: Path) -> None:
    place = groups(tmp_path, own, {"cpu.max": "odd", "memory.max": "odd"})
    assert limits.most_cores(*place) == math.inf
    assert limits.memory_left(*place) == math.inf


def test_a_limit_below_the_cores_is_told_with_what_to_do() -> None:
    found = limits._cores(8, 64, 2.0)
    assert (found.state, "workers.processes=2" in found.advice) == ("limited", True)
    assert limits._cores(2, 2, 2.0).state == "fine"
    assert (
        limits._memory(8 << 30, 1 << 30).says
        == "1.0 GiB free within a limit on this container; the machine has 8.0 GiB"
    )
    assert limits._memory(None, math.inf).state == "fine"


# Folders.


def test_folders_that_cannot_be_written_are_told(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "runs").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "runs"))
    found = {each.topic: each for each in folders.look()}
    assert found["runs"].state == "broken"
    assert "--out" in found["runs"].advice
    assert found["cache"].state == "limited"
    assert found["temporary"].state == "fine"
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]


def test_little_room_is_told(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 5 << 20}))
    assert folders._folder("runs", tmp_path, "more", "broken").says.endswith("5 MiB free")
    assert folders._shared(tmp_path / "nowhere").state == "limited"


# Executors.


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("raises", "KeyError: 'odd'"),
        ("dies", "its process died \\(signal 9\\)"),
        ("exits", "SystemExit: 0"),
        ("hangs", "it gave no answer within 0.5 s"),
        ("lies", "from what sequential computes"),
    ],
)
def test_whatever_an_executor_does_the_examination_goes_on(what: str, says: str, monkeypatch: Patch) -> None:
    def run(name: str, folder: Path) -> None:
        if name == "workers" and what == "raises":
            raise KeyError("odd")
        if name == "workers" and what == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "workers" and what == "exits":
            raise SystemExit(0)
        if name == "workers" and what == "hangs":
            time.sleep(60)
        folder.mkdir()
        (folder / "value").write_text("1.5" if name == "workers" and what == "lies" else "1")

    class Folder:
        def __init__(self, path: Path) -> None:
            self.path = path

        def model(self) -> dict[str, Any]:
            return {"params": {"w": torch.tensor([float((self.path / "value").read_text())])}}

    monkeypatch.setattr(trying, "_run", run)
    monkeypatch.setattr(trying, "RunFolder", Folder)
    monkeypatch.setattr(trying, "_PATIENCE", 0.5 if what == "hangs" else 20.0)
    found = {each.topic: each for each in trying.look(slow_too=False)}
    assert found["sequential"].state == "fine"
    assert found["workers"].state == "broken"
    assert re.search(says, found["workers"].says)
    assert "--all" in found["ray"].advice


def test_something_broken_is_exit_code_2_and_one_sentence(capsys: Capture, monkeypatch: Patch) -> None:
    found = [Finding("executors", "workers", "broken", "odd"), Finding("GPU", "none", "absent", "no", "buy one")]
    monkeypatch.setattr(examination, "examine", lambda slow_too: iter(found))
    code, out, err = called(capsys, monkeypatch, "doctor")
    assert code == 2
    assert "-> buy one" in out
    assert err == "error: fewfed does not work as it should here: see what is broken above (workers)\n"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_why_there_is_no_gpu_is_told(monkeypatch: Patch) -> None:
    (only,) = torch_here.gpus()
    assert only.state == "absent"
    monkeypatch.setattr(torch_here.shutil, "which", lambda _: "nvidia-smi")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in next(iter(torch_here.gpus())).says
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA_VISIBLE_DEVICES is ''" in next(iter(torch_here.gpus())).says


@pytest.mark.thorough
def test_all_executors_are_tried_as_a_user_types_it(tmp_path: Path) -> None:
    """In a process of its own: clusters do not start in one that has threads of another left behind."""
    done = program("doctor", "--all", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"fine +ray +a round of FedAvg in .* with the bits of sequential", done.stdout)
