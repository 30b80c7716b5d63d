"""What can be typed after `fewfed`, read from the command line's own declarations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import typer

FILES = "files"
FREE = ""
"""Kinds of values beside those that have a list: a file or folder, and what only the user can know."""


@dataclass(frozen=True)
class Option:
    """An option of a command."""

    name: str
    help: str
    value: str | None
    """The kind of its value; None where it takes none."""


@dataclass(frozen=True)
class Command:
    """A command as it is typed (`data get` is one), with its options and the kind of its arguments."""

    words: tuple[str, ...]
    help: str
    options: tuple[Option, ...]
    arguments: str
    inside: tuple[str, ...] = ()
    """Commands below it."""


def commands_of(app: typer.Typer, kinds: Mapping[str, str]) -> list[Command]:
    """All commands. `kinds`: the kind of a parameter's value by its name, or by `command.name` where that differs."""
    return list(_commands(typer.main.get_command(app), (), kinds))


def _commands(command: Any, words: tuple[str, ...], kinds: Mapping[str, str]) -> Iterator[Command]:
    inside: dict[str, Any] = getattr(command, "commands", {})
    options = [each for each in command.params if each.param_type_name == "option"]
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    yield Command(
        words,
        _first_sentence(command.help or ""),
        (*(_option(each, words, kinds) for each in options), Option("--help", "Show the help.", None)),
        _kind(arguments[0], words, kinds) if arguments else FREE,
        tuple(inside),
    )
    for name, below in inside.items():
        yield from _commands(below, (*words, name), kinds)


def _option(parameter: Any, words: tuple[str, ...], kinds: Mapping[str, str]) -> Option:
    value = None if parameter.is_flag else _kind(parameter, words, kinds)
    return Option(parameter.opts[0], _first_sentence(parameter.help or ""), value)


def _kind(parameter: Any, words: tuple[str, ...], kinds: Mapping[str, str]) -> str:
    own = f"{' '.join(words)}.{parameter.name}"
    if own in kinds:
        return kinds[own]
    if parameter.type.name in ("path", "file", "directory"):
        return FILES
    return kinds.get(parameter.name, FREE)


def _first_sentence(text: str) -> str:
    return " ".join(text.split("\n\n")[0].split()).split(": ")[0].rstrip(".")
