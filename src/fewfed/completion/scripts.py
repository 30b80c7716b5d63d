"""The scripts that teach a shell what can be typed, and where each shell looks for them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from string import Template

from fewfed.completion.grammar import FILES, FREE, Command
from fewfed.completion.values import SHELLS, WITH_FILES
from fewfed.errors import ConfigError, RunError, did_you_mean
from fewfed.version import __version__

_MARK = "Written by 'fewfed completion"
_TO_DO = {
    "bash": "a new shell has it where bash-completion is installed; otherwise let ~/.bashrc source this file",
    "fish": "a new shell has it",
    "zsh": "a new shell has it if ~/.zshrc has 'fpath+=~/.zfunc' before 'autoload -Uz compinit; compinit'",
}


def shell_of(name: str | None) -> str:
    """The shell that was named, or the user's own."""
    wanted = name or Path(os.environ.get("SHELL", "")).name
    if wanted in SHELLS:
        return wanted
    if name is None:
        raise ConfigError(f"which shell? Name one of {', '.join(SHELLS)}, as in 'fewfed completion bash'")
    raise ConfigError(did_you_mean("shell", wanted, SHELLS))


def script(shell: str, commands: Sequence[Command], values: Mapping[str, tuple[str, ...]]) -> str:
    """What the shell is to read."""
    return _fish(commands, values) if shell == "fish" else _sh(shell, commands, values)


def install(shell: str, text: str) -> tuple[Path, str]:
    """Write the script where the shell looks for it; that file, and what the user has still to do."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    places = {
        "bash": data / "bash-completion" / "completions" / "fewfed",
        "fish": settings / "fish" / "completions" / "fewfed.fish",
        "zsh": home / ".zfunc" / "_fewfed",
    }
    place = places[shell]
    try:
        if place.exists() and _MARK not in place.read_text(errors="replace"):
            raise ConfigError(f"'{place}' is somebody else's file and is not overwritten: move it away first")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    except OSError as error:
        raise RunError(f"cannot write '{place}': {error.strerror or error}") from error
    return place, _TO_DO[shell]


def _sh(shell: str, commands: Sequence[Command], values: Mapping[str, tuple[str, ...]]) -> str:
    """The same tables for both shells; the functions that read them differ."""
    table = []
    for command in commands:
        options = " ".join(
            option.name if option.value is None else f"{option.name}={option.value}" for option in command.options
        )
        parts = {"options": options, "arguments": command.arguments, "inside": " ".join(command.inside)}
        said = " ".join(f"{name}={shlex.quote(text)}" for name, text in parts.items())
        table.append(f"    {shlex.quote(' '.join(command.words))}) {said} ;;")
    names = [f"    {kind}) values={shlex.quote(' '.join(listed))} ;;" for kind, listed in sorted(values.items())]
    return Template(_template(shell)).substitute(
        version=__version__, commands="\n".join(table), values="\n".join(names), with_files="|".join(_with_files())
    )


def _fish(commands: Sequence[Command], values: Mapping[str, tuple[str, ...]]) -> str:
    lines = []
    for command in commands:
        here = f"'__fewfed_at {' '.join(command.words)}'"
        for name in command.inside:
            told = next(each.help for each in commands if each.words == (*command.words, name))
            lines.append(f"complete -c fewfed -n {here} -a {name} -d {_fish_quoted(told)}")
        if command.arguments != FREE:
            lines.append(f"complete -c fewfed -n {here}{_fish_values(command.arguments, values)}")
        for option in command.options:
            value = "" if option.value is None else " -r" + _fish_values(option.value, values)
            told = _fish_quoted(option.help)
            lines.append(f"complete -c fewfed -n {here} -l {option.name.removeprefix('--')}{value} -d {told}")
    names = " ".join(_fish_quoted(" ".join(command.words)) for command in commands if command.words)
    return Template(_template("fish")).substitute(version=__version__, names=names, lines="\n".join(lines))


def _fish_values(kind: str, values: Mapping[str, tuple[str, ...]]) -> str:
    files = " -F" if kind in _with_files() else " -f"
    return f"{files} -a {_fish_quoted(' '.join(values[kind]))}" if values.get(kind) else files


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _with_files() -> list[str]:
    return sorted({*WITH_FILES, FILES})


def _template(shell: str) -> str:
    return (resources.files("fewfed.completion") / "templates" / f"{shell}.txt").read_text(encoding="utf-8")
