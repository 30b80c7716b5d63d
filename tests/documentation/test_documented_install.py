"""`pip install .` as the pages type it, but for the packages that fewfed needs, which this environment has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from documents import ROOT

NEEDED = ("pyproject.toml", "README.md", "LICENSE")
OFFLINE = ("--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation")


def files(folder: Path) -> set[str]:
    return {
        file.relative_to(folder).as_posix()
        for file in folder.rglob("*")
        if file.is_file() and file.suffix != ".pyc" and not file.parent.name.endswith((".egg-info", ".dist-info"))
    }


@pytest.mark.timeout(300)
def test_what_pip_installs_is_the_whole_program(tmp_path: Path) -> None:
    """Also the templates, pages and notes that are no Python. The packages that build it come with torch."""
    pytest.importorskip("setuptools")
    clone, out = tmp_path / "clone", tmp_path / "installed"
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in NEEDED:
        shutil.copy(ROOT / name, clone)
    command = [sys.executable, "-m", "pip", "install", *OFFLINE, "--target", str(out), "."]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert files(out / "fewfed") == files(ROOT / "src" / "fewfed")
    found = subprocess.run(
        [sys.executable, "-c", "import fewfed, fewfed.cli; print(fewfed.__file__)"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(out)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.stdout.strip() == str(out / "fewfed" / "__init__.py"), found.stderr
    assert (out / "bin" / "fewfed").is_file()
