"""The documents of the project, and what is in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from documentation.reference import example_of

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
"""What users read first, wrapped at one width."""
DOCUMENTS = [
    *PAGES,
    *(
        page
        for folder in ("benchmarks", "deploy", "reproduce", "src", "tests", "tools")
        for page in sorted((ROOT / folder).rglob("*.md"))
        if not any(part.startswith(".") for part in page.relative_to(ROOT).parts)  # Made by programs.
    ),
    ROOT / "SECURITY.md",
]
"""Every document of the project."""
COMMANDS = ("", "bash")
"""Languages of code blocks whose lines are commands."""


@cache
def program() -> Any:
    """The program's commands; to make them takes a tenth of a second."""
    return typer.main.get_command(app)


def name_of(page: Path) -> str:
    """How a page is called in a test."""
    return page.relative_to(ROOT).as_posix()


def code(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language, none for plain text."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


def typed_in(page: Path) -> list[str]:
    """The lines in code blocks of a page that somebody types, in order, of whatever program."""
    text = "\n".join(content for language, content in blocks(page) if language in COMMANDS).replace("\\\n", " ")
    lines = (" ".join(line.split(" #")[0].split()) for line in text.splitlines() if not line.startswith("#"))
    return [line for line in lines if line]


def commands_in(page: Path) -> list[str]:
    """Those of them that are commands of the program."""
    return [line for line in typed_in(page) if line.startswith("fewfed ")]


def commands_of_make() -> list[str]:
    """Commands of the program that `make` runs, in order."""
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    return [" ".join(line.split()) for line in re.findall(r"^\t\$\(BIN\)/(fewfed .+)$", text, re.M)]


def started_by_services(page: Path) -> list[str]:
    """Commands of the program in files for services on a page."""
    text = "\n".join(code(page, "ini")).replace("\\\n", " ")
    return [" ".join(line.split()) for line in re.findall(r"^ExecStart=\S*/(fewfed .+)$", text, re.M)]


def mentioned_in(page: Path) -> list[str]:
    """Commands within sentences, in order; those without anything behind their name only speak of a command."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    found = [" ".join(text.split()) for text in re.findall(r"`(fewfed\s[^`]+)`", prose)]
    return [line for line in found if len(line.split()) > len(_name_of_command(line))]


def _name_of_command(line: str) -> list[str]:
    """The words of a line that are the program and its command, as in `fewfed diagnose features`."""
    command = program()
    words = ["fewfed"]
    for word in line.split()[1:]:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        words.append(word)
    return words


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content of every code block of a page, in order."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.M | re.S)


def understood(line: str) -> None:
    """Raise unless every flag exists and has a value of its type, and every field of `--set` belongs to somebody."""
    command = program()
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


def help_of_commands() -> dict[str, tuple[str, str]]:
    """What the help of every command says and the example in it, by the command's name; empty where it has none."""

    def below(name: str, command: Any) -> Iterator[tuple[str, tuple[str, str]]]:
        yield name, example_of(command.help or "")
        for each, command_below in getattr(command, "commands", {}).items():
            yield from below(f"{name} {each}", command_below)

    return dict(below("fewfed", program()))


def examples_of_help() -> list[str]:
    return [example for _, example in help_of_commands().values()]
