"""The reference: commands from their help, the Python interface from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import fewfed
from documentation.tables import escaped, table
from fewfed.cli.app import app
from fewfed.data.readers.options import DataOptions
from fewfed.settings import describe

_METHODS = {
    "fewfed.method": ("Exchange", "Method", "Part", "Context", "Batch", "Report", "Combined", "Setup", "Preset"),
    "fewfed.phase": ("Phase", "Clock", "Upload", "Combine", "Role", "Cohort", "Weight", "shared_rows"),
    "fewfed.wrapper": ("Wrapper", "Around"),
    "fewfed.settings": ("setting",),
    "fewfed.tree": (),
}
"""What somebody who writes a method imports; an empty list are all public functions."""


def pages() -> dict[str, str]:
    """The text of every page, by its place."""
    return {
        "reference/commands.md": _commands(),
        "reference/python.md": _python(),
        "reference/settings.md": _settings(),
        "reference/methods.md": _for_methods(),
    }


def _commands() -> str:
    import typer

    parts = ["# Commands", "Made from the program's own help: `fewfed COMMAND --help`."]
    for name, command in _each("fewfed", typer.main.get_command(app)):
        text, example = example_of(command.help or "")
        parts += [f"## {name}", escaped(" ".join(text.split())), f"```\n{example}\n```"]
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        options = [each for each in command.params if each.param_type_name == "option"]
        rows = [[f"`{each.human_readable_name}`", "", escaped(getattr(each, "help", "") or "")] for each in arguments]
        rows += [[f"`{'`, `'.join(each.opts)}`", _kind(each), escaped(each.help or "")] for each in options]
        parts.append(table(["argument or option", "takes", "meaning"], rows))
    return "\n\n".join(parts) + "\n"


def example_of(help_text: str) -> tuple[str, str]:
    """A command's help without its example, and the example."""
    text, _, rest = help_text.partition("Example: ")
    example, _, more = rest.partition("\n\n")
    return f"{text} {more}".strip(), " ".join(example.split())


def _each(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    inside = getattr(command, "commands", {})
    if not inside or (command.invoke_without_command and name != "fewfed"):
        yield name, command
    for each, below in inside.items():
        yield from _each(f"{name} {each}", below)


def _kind(option: Any) -> str:
    if option.is_flag:
        return "flag"
    return ("text" if option.type.name == "text" else option.type.name) + (", repeatable" if option.multiple else "")


def _python() -> str:
    functions = [name for name in fewfed.__all__ if inspect.isfunction(getattr(fewfed, name))]
    classes = [name for name in fewfed.__all__ if inspect.isclass(getattr(fewfed, name))]
    parts = [
        "# Python",
        "What `import fewfed` gives. Errors are subclasses of `fewfed.FewfedError`, one sentence each.",
        "## Functions",
        *(text for name in functions for text in _documented(name, getattr(fewfed, name))),
        "## Classes",
        *(text for name in classes for text in _documented(name, getattr(fewfed, name))),
    ]
    return "\n\n".join(parts) + "\n"


def _settings() -> str:
    parts = [
        "# Settings",
        "Fields by name, for `--set FIELD=VALUE`, TOML files and Python. Those of methods are on [their "
        "pages](../methods.md), those of executors in [speed](../speed.md#options-of-executors).",
    ]
    for title, cls in (("Experiment", fewfed.Experiment), ("Training", fewfed.Training), ("Data options", DataOptions)):
        rows = [
            [f"`{each.name}`", each.type, f"`{_default(each.default)}`", each.range, escaped(each.help)]
            for each in describe(cls)
        ]
        parts += [f"## {title}", _prose(cls), table(["field", "type", "default", "range", "meaning"], rows)]
    return "\n\n".join(parts) + "\n"


def _for_methods() -> str:
    parts = ["# For authors of methods", "What [a method](../contributing.md#add-a-method) is written with."]
    for module, names in _METHODS.items():
        found = importlib.import_module(module)
        parts += [f"## {module}", _prose(found)]
        for name in names or _functions(found):
            parts += _documented(name, getattr(found, name))
    return "\n\n".join(parts) + "\n"


def _functions(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


def _documented(name: str, thing: Any) -> list[str]:
    parts = [f"### {name}", f"```python\n{_signature(name, thing)}\n```", _prose(thing)]
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            target = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if not member.startswith("_") and inspect.isfunction(target) and target.__doc__:
                said = f"`{member}`" if isinstance(value, property) else f"`{_signature(member, target)}`"
                parts.append(f"**{said}** {_prose(target)}")
    return [part for part in parts if part]


def _signature(name: str, thing: Any) -> str:
    if inspect.isclass(thing) and (issubclass(thing, Exception) or "Enum" in str(type(thing))):
        members = ", ".join(getattr(thing, "__members__", {}))
        return f"class {name}" + (f": {members}" if members else f"({thing.__mro__[1].__name__})")
    if inspect.isclass(thing) and dataclasses.is_dataclass(thing) and len(dataclasses.fields(thing)) > _MANY:
        return f"{name}(...)  # all fields: settings"
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return f"class {name}"
    shown = str(signature.replace(parameters=[p for p in signature.parameters.values() if p.name != "self"]))
    shown = re.sub(r"<factory>|<[\w.]+ object at \w+>", "...", shown)
    shown = re.sub(r"(: |-> )(['\"])(.*?)\2", r"\1\3", shown)  # Annotations are kept as text.
    return _broken(name + re.sub(r"(?:fewfed|torch|numpy|collections)[\w.]*\.(?=\w)", "", shown))


_MANY = 12
_WIDE = 88


def _broken(signature: str) -> str:
    """A long signature with an argument a line."""
    if len(signature) <= _WIDE:
        return signature
    inside, _, ending = signature.partition("(")[2].rpartition(")")
    arguments = re.split(r", (?=[*\w]+(?::|=|,|$)|\*,)", inside)
    return f"{signature.partition('(')[0]}(\n    " + ",\n    ".join(arguments) + f",\n){ending}"


def _default(value: Any) -> str:
    return "empty" if value in ("", ()) else str(value)


def _prose(thing: Any) -> str:
    said = inspect.getdoc(thing) or ""
    if said.startswith(f"{getattr(thing, '__name__', '')}("):
        return ""  # What a dataclass without words of its own has.
    return "\n\n".join(escaped(" ".join(part.split())) for part in re.split(r"\n\s*\n", said))
