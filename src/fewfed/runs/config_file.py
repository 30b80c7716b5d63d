"""An experiment as one TOML file. What is wrong in it is reported with its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fewfed.engine.executors.registry import plugins
from fewfed.errors import ConfigError, FewfedError, did_you_mean

_TABLES = ("method", "experiment", "training", "data_options", "executor")


@dataclass(frozen=True)
class Place:
    """A key of the file, its value, and the line it stands on."""

    name: str
    value: Any
    line: int


@dataclass(frozen=True)
class ConfigFile:
    """What a file says: methods (one or several), flat values for `resolve`, and where each key stands."""

    methods: tuple[str, ...]
    seeds: int
    values: dict[str, Any]
    places: tuple[Place, ...]
    path: str

    def without(self, overridden: Collection[str]) -> ConfigFile:
        """The same file, but no longer blamed for keys that something else has overridden."""
        return replace(self, places=tuple(place for place in self.places if place.name not in overridden))

    def explain(self, error: FewfedError) -> FewfedError:
        """The same error with file and line, where the setting it speaks of stands in this file."""
        named = [place for place in self.places if error.key and _is_named(place, error.key)]
        valued = [place for place in named if error.value is None or _holds(place.value, error.value)]
        for place in (*valued, *named):
            return error.at(f"{self.path}, line {place.line}")
        return error


def read(path: Path, beside: Collection[str] = ()) -> ConfigFile:
    """Read `method` (or `methods`), `seeds`, fields of any part at the top, and the tables [method], [experiment],
    [training], [data_options], [executor]; [method.NAME] sets fields of one of several methods, and [executor] names an
    executor and sets its options. `beside`: tables that somebody else reads."""
    try:
        text = path.read_text(encoding="utf-8")
        content = {key: value for key, value in tomllib.loads(text).items() if key not in beside}
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror or error}; expected a TOML file") from error
    except (ValueError, RecursionError) as error:  # Not TOML or not text; a number of thousands of digits; brackets.
        raise ConfigError(f"{path} is not TOML: {error}") from error
    lines = _lines_of_keys(text)
    values: dict[str, Any] = {}
    places: list[Place] = []
    for name, value in _flat(content, path, lines):
        line = _line(lines, name)
        if name.startswith("executor."):
            name = _of_executor(name, content, path, lines)
        places.append(Place(name, value, line))
        values[_without_owner(name)] = value
    names = _names(values.pop("methods", values.pop("method", ())))
    if names is None:
        where = _line(lines, "methods" if "methods" in content else "method")
        raise ConfigError(f"{path}, line {where}: method and methods: expected a name or a list of names")
    seeds = values.pop("seeds", 1)
    if not isinstance(seeds, int) or isinstance(seeds, bool) or seeds < 1:
        raise ConfigError(f"{path}, line {_line(lines, 'seeds')}: seeds = {seeds!r}: expected a whole number from 1 on")
    return ConfigFile(names, seeds, values, tuple(places), str(path))


def _flat(content: Mapping[str, Any], path: Path, lines: Mapping[str, int]) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if not isinstance(value, dict):
            yield key, value
            continue
        if key not in _TABLES:
            raise ConfigError(f"{path}, line {_line(lines, key)}: {did_you_mean('table', key, _TABLES)}")
        for name, inner in value.items():
            if not isinstance(inner, dict):
                yield f"{key}.{name}", inner
            elif key == "method":
                for field, leaf in inner.items():
                    yield f"{key}.{name}.{field}", leaf
            else:
                where = _line(lines, f"{key}.{name}")
                raise ConfigError(f"{path}, line {where}: '{name}' is a table: expected a value in [{key}]")


def _names(given: Any) -> tuple[str, ...] | None:
    names = (given,) if isinstance(given, str) else given
    fits = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
    return tuple(names) if fits else None


def _without_owner(name: str) -> str:
    """`method.fedprox.mu` is written `fedprox.mu` on the command line."""
    return name.split(".", 1)[1] if name.count(".") > 1 else name


def _lines_of_keys(text: str) -> dict[str, int]:
    """The line of every table and key by its full name."""
    found: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+([^\]]+)\]", line)
        key = re.match(r"\s*([\w.\"' -]+?)\s*=", line)
        if header:
            table = _plain(header[1])
            found.setdefault(table, number)
        elif key:
            found.setdefault(f"{table}.{_plain(key[1])}" if table else _plain(key[1]), number)
    return found


def _line(lines: Mapping[str, int], name: str) -> int:
    """A key's line; for one inside an inline table, that of the table."""
    while name not in lines and "." in name:
        name = name.rpartition(".")[0]
    return lines.get(name, 1)


def _plain(key: str) -> str:
    return ".".join(part.strip(" \"'") for part in key.split("."))


def _of_executor(name: str, content: Mapping[str, Any], path: Path, lines: Mapping[str, int]) -> str:
    """A key of the table [executor] as it is written on the command line."""
    option = name.removeprefix("executor.")
    if option == "name":
        return "experiment.executor"
    executor = content["executor"].get("name")
    if not isinstance(executor, str) or executor == "auto":
        expected = f"expected name = ... with it, one of {', '.join(plugins())}"
        raise ConfigError(f"{path}, line {_line(lines, name)}: [executor] sets '{option}' of no executor: {expected}")
    if executor not in plugins():
        where = _line(lines, "executor.name")
        raise ConfigError(f"{path}, line {where}: {did_you_mean('executor', executor, plugins())}")
    return f"{executor}.{option}"


def _is_named(place: Place, key: str) -> bool:
    spellings = {place.name, _without_owner(place.name), place.name.rpartition(".")[2]}
    # A method's name may be given as one of a list.
    return bool({key, key.rpartition(".")[2]} & spellings) or (key == "method" and place.name == "methods")


def _holds(given: Any, value: object) -> bool:
    """Whether what the file gives is what an error speaks of: a value, one of a list, or `name` of `name:preset`."""
    entries = given if isinstance(given, list) else [given]
    return any(entry == value or (isinstance(entry, str) and str(value) in entry.split(":")) for entry in entries)
