"""The help of every command has an example, and the example is understood."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from documentation.reference import example_of

from documents import understood
from fewfed.cli.app import app


def every_command(name: str = "fewfed", command: Any = None) -> Iterator[tuple[str, Any]]:
    command = command or typer.main.get_command(app)
    yield name, command
    for each, below in getattr(command, "commands", {}).items():
        yield from every_command(f"{name} {each}", below)


COMMANDS = dict(every_command())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_is_understood(name: str) -> None:
    said, example = example_of(COMMANDS[name].help or "")
    assert said
    assert example.startswith(name), f"the docstring of '{name}' needs a line 'Example: {name} ...'"
    understood(example)
