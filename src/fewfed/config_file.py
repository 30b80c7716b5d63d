"""An experiment as one TOML file. A misspelt key is reported with its line."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewfed.errors import ConfigError

_TABLES = {"method": "method", "training": "training", "data_options": "data_options"}


@dataclass(frozen=True)
class ConfigFile:
    """What a file says: methods (one or several), flat values for `resolve`, and where each key stands."""

    methods: tuple[str, ...]
    seeds: int
    values: dict[str, Any]
    lines: dict[str, int]
    path: str

    def explain(self, error: ConfigError) -> ConfigError:
        """The same error with file and line, where it speaks of a key of this file."""
        for name, line in self.lines.items():
            short = name.rsplit(".", 1)[-1]
            if f"'{short}'" in str(error) or str(error).startswith(f"{short} = "):
                return ConfigError(f"{self.path}, line {line}: {error}")
        return error


def read(path: Path) -> ConfigFile:
    """Read `method` (or `methods`), `seeds`, experiment fields at the top, and the tables [method], [training],
    [data_options]; [method.NAME] sets fields of one of several methods."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read '{path}': {error.strerror or error}; expected a TOML file") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    methods = content.pop("methods", content.pop("method", None) if isinstance(content.get("method"), str) else None)
    seeds = content.pop("seeds", 1)
    if not isinstance(seeds, int) or seeds < 1:
        raise ConfigError(f"{path}, line {_line(text, 'seeds')}: seeds = {seeds!r}: expected a whole number from 1 on")
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in content.items():
        if isinstance(value, dict):
            if key not in (*_TABLES, "fields"):
                known = ", ".join(f"[{table}]" for table in _TABLES)
                raise ConfigError(f"{path}, line {_line(text, key)}: unknown table [{key}]: expected one of {known}")
            for name, inner in value.items():
                _take(f"{key}.{name}", inner, text, values, lines)
        else:
            values[key] = value
            lines[key] = _line(text, key)
    names = (methods,) if isinstance(methods, str) else tuple(methods or ())
    return ConfigFile(names, seeds, values, lines, str(path))


def _take(name: str, value: Any, text: str, values: dict[str, Any], lines: dict[str, int]) -> None:
    if isinstance(value, dict):
        for inner, leaf in value.items():
            values[f"{name.split('.', 1)[1]}.{inner}"] = leaf
            lines[f"{name}.{inner}"] = _line(text, inner)
    else:
        values[name] = value
        lines[name] = _line(text, name.rsplit(".", 1)[-1])


def _line(text: str, key: str) -> int:
    pattern = re.compile(rf"^\s*(\[?[\w.\"-]*\b)?{re.escape(key)}\b")
    return next((number for number, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 1)
