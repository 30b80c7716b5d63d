"""What operators are given: a compose file, an image, systemd units. They say what the program understands."""

from __future__ import annotations

import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from fewfed.cli.app import app

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))


def understood(words: list[str]) -> dict[str, Any]:
    """What a command of ours makes of its words; it raises where it does not know one."""
    command: Any = typer.main.get_command(app)
    assert words[0] == "fewfed"
    command = command.commands[words[1]]
    found: dict[str, Any] = command.make_context(command.name, words[2:]).params
    return found


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    text = re.sub(r"\$\{(\w+):\?[^}]*\}", lambda found: {"SITE": "north", "SERVER": "fl.example.org:9092"}[found[1]],
                  (DEPLOY / "compose.yaml").read_text())  # fmt: skip
    assert "${" not in text
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def test_the_compose_file_starts_a_coordinator_and_a_site(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert services.keys() == {"coordinator", "site"}
    site = understood(services["site"]["command"])
    assert (site["name"], site["server"], str(site["state"])) == ("north", "fl.example.org:9092", "/state")
    name, config, out = services["coordinator"]["command"]
    assert name == "fewfed-serve"
    assert understood(["fewfed", "serve", config, "--out", out, "--resume"])["resume"]
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert (ROOT / "deploy" / service["build"]["context"]).resolve() == ROOT
        mounted = dict(volume.split(":", 1) for volume in service["volumes"])
        kept = {source: place for source, place in mounted.items() if not place.endswith(":ro")}
        assert set(kept.values()) == {"/state"}, "only what it must not forget is written"
        assert set(kept) <= compose["volumes"].keys()
        places = {place.removesuffix(":ro") for place in mounted.values()}
        used = [word.partition("=")[2] or word for word in service["command"] if "/" in word and ":90" not in word]
        assert all(any(path.startswith(place) for place in places) for path in used), used
    assert "ports" not in services["site"], "nobody connects to a site"


def test_the_image_has_what_is_copied_and_is_no_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (.+)$", text, re.M):
        for source in line.split()[:-1]:
            assert list(ROOT.glob(source)), source
    assert re.search(r"^USER fewfed$", text, re.M)
    assert "'.[flower]'" in text
    assert "COPY deploy/serve.sh /usr/local/bin/fewfed-serve" in text


def test_the_script_begins_a_run_or_goes_on_with_it(tmp_path: Path) -> None:
    """A `fewfed` that only says what it was asked for stands in: what it does with that is tested elsewhere."""
    script = DEPLOY / "serve.sh"
    assert script.stat().st_mode & stat.S_IXUSR
    (tmp_path / "fewfed").write_text('#!/bin/sh\necho "fewfed $*"\n')
    (tmp_path / "fewfed").chmod(0o755)
    out = tmp_path / "a run"
    told = []
    for _ in range(2):
        found = subprocess.run(
            [script, "federation.toml", out], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        told.append(found.stdout.strip())
        out.mkdir(exist_ok=True)
        (out / "federation.json").touch()
    assert told == [f"fewfed serve federation.toml --out {out}", f"fewfed serve federation.toml --out {out} --resume"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_start_what_the_program_understands(unit: Path) -> None:
    text = unit.read_text()
    (line,) = re.findall(r"^ExecStart=(.+)$", text, re.M)
    words = shlex.split(line.replace("${SITE}", "north").replace("${SERVER}", "fl.example.org:9092"))
    if words[0].endswith("/fewfed-serve"):
        words = ["fewfed", "serve", words[1], "--out", words[2]]
    understood(["fewfed", *words[1:]])
    (kept,) = re.findall(r"^StateDirectory=(.+)$", text, re.M)
    assert f"WorkingDirectory=/var/lib/{kept}\n" in text
    assert any(f"/var/lib/{kept}" in word for word in words), "it writes where it may"
    for name, value in (("User", "fewfed"), ("Restart", "on-failure"), ("ProtectSystem", "strict")):
        assert f"{name}={value}\n" in text


def test_there_is_a_unit_for_each_side() -> None:
    assert [unit.name for unit in UNITS] == ["fewfed-coordinator.service", "fewfed-site.service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here: the units are only read by the test above")
    # It wants commands that exist, and has nothing else to say.
    copied = tmp_path / unit.name
    copied.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.M))
    found = subprocess.run(["systemd-analyze", "verify", copied], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    ours = [line for line in found.stderr.splitlines() if unit.name in line]
    assert ours == []
