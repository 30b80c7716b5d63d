"""The help of every command has an example, and the example is understood."""

from __future__ import annotations

import pytest

from documents import help_of_commands, understood

HELP = help_of_commands()


@pytest.mark.parametrize("name", HELP)
def test_help_has_an_example_that_is_understood(name: str) -> None:
    said, example = HELP[name]
    assert said
    assert example.startswith(name), f"the docstring of '{name}' needs a line 'Example: {name} ...'"
    understood(example)
