"""An experiment as one TOML file. What is wrong in it is reported with its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fewfed.errors import ConfigError, FewfedError, did_you_mean

_TABLES = ("method", "experiment", "training", "data_options")


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
        """The same error with file and line, where it speaks of a key, or else of a text value, of this file."""
        text = str(error).split(": did you mean")[0].split(": expected")[0]  # What was found, not what was meant.
        by_key = [place for place in self.places if _speaks_of(text, place.name)]
        by_value = [place for place in self.places if any(f"'{value}'" in text for value in _texts(place.value))]
        for place in (*by_key, *by_value):
            return type(error)(f"{self.path}, line {place.line}: {error}")
        return error


def read(path: Path) -> ConfigFile:
    """Read `method` (or `methods`), `seeds`, fields of any part at the top, and the tables [method], [experiment],
    [training], [data_options]; [method.NAME] sets fields of one of several methods."""
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror or error}; expected a TOML file") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    lines = _lines_of_keys(text)
    values: dict[str, Any] = {}
    places: list[Place] = []
    for name, value in _flat(content, path, lines):
        places.append(Place(name, value, _line(lines, name)))
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


def _speaks_of(text: str, name: str) -> bool:
    short = name.rpartition(".")[2]
    return f"'{short}'" in text or text.startswith(f"{short} = ")


def _texts(value: Any) -> list[str]:
    """The texts a message may quote: a value, each of a list, and `name` of `name:preset`."""
    entries = value if isinstance(value, list) else [value]
    texts = [entry for entry in entries if isinstance(entry, str) and entry]
    return [part for text in texts for part in (text, *text.split(":")) if part]
