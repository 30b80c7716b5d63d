"""Without Flower the program says what is missing, and what needs nothing of it works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from federation import Federation, write_digits

BLOCKED = """
import sys, importlib.metadata as metadata
class Blocked:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("flwr", "cryptography", "httpx", "uvicorn", "ray"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
found = metadata.version
def version(name):
    if name == "flwr":
        raise metadata.PackageNotFoundError(name)
    return found(name)
metadata.version = version
from fewfed.cli import main
main()
"""


def fewfed(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "serve.toml", "--out", "run"),
        ("site", "--data", "a.npz", "--name", "a", "--key", "k", "--server", "h:1", "--state", "s"),
    ],
    ids=["serve", "site"],
)
def test_what_is_missing_is_named(command: tuple[str, ...], tmp_path: Path) -> None:
    found = fewfed(*command, cwd=tmp_path)
    assert found.returncode == 2
    assert "pip install 'fewfed[flower]'" in found.stderr
    assert list(tmp_path.iterdir()) == []


def test_status_and_other_commands_need_no_flower(tmp_path: Path) -> None:
    write_digits(tmp_path)
    Federation(tmp_path, rounds=1).run()
    for command in (("status", "run"), ("show", "run"), ("verify", "run"), ("--help",)):
        found = fewfed(*command, cwd=tmp_path)
        assert found.returncode == 0, found.stderr


def test_the_package_is_light() -> None:
    code = (
        "import sys, fewfed, fewfed.cli.app; print(sorted({'flwr', 'cryptography', 'httpx', 'ray'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "[]"
