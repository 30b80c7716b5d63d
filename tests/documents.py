"""The documents of the project, and what is in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import typer

from fewfed.cli import options as opt
from fewfed.cli.app import app
from fewfed.runs.experiment import resolve
from fewfed.spelling import spelled

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
COMMANDS = ("", "bash")
"""Languages of code blocks whose lines are commands."""


def name_of(page: Path) -> str:
    """How a page is called in a test."""
    return page.relative_to(ROOT).as_posix()


def code(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language, none for plain text."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def commands_in(page: Path) -> list[str]:
    """The commands in code blocks of a page, in order, as a user would type them."""
    lines = [line for found in blocks(page) for line in found[1].splitlines() if found[0] in COMMANDS]
    return [line.split(" #")[0].strip() for line in lines if line.startswith("fewfed ") and "..." not in line]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content of every code block of a page, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.M | re.S)


def understood(line: str) -> None:
    """Raise unless every flag exists and has a value of its type, and every field of `--set` belongs to somebody."""
    command: Any = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command = command.commands[words.pop(0)]
    if not words:
        return
    parsed = command.make_context(command.name, words).params
    method = parsed.get("method") or "fedavg"
    sets = opt.gather(None, parsed.get("sets"), {}).values
    if method != "METHOD" and not spelled(method).files:
        resolve(method, sets)
