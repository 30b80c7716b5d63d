"""How a method is written: `name`, `name:preset`, `path/to/file.py`, and any of them around another, `outer(inner)`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fewfed.errors import ConfigError

_LONGEST = 4096
_DEEPEST = 16
"""Longest name of a method, which may be the path of a file, and most wrappers around one."""
_SHOWN = 100


@dataclass(frozen=True)
class Spelled:
    """A method as a user wrote it, taken apart. Nothing is looked up, and no file is opened."""

    name: str
    """A registered method's, or the path of a file."""
    preset: str = ""
    inner: Spelled | None = None
    """What it is around."""

    @property
    def is_file(self) -> bool:
        return self.name.endswith(".py")

    @property
    def files(self) -> tuple[str, ...]:
        """The files in it, outermost first: `mixup(mine.py)` has one."""
        return ((self.name,) if self.is_file else ()) + (self.inner.files if self.inner else ())

    @property
    def alone(self) -> str:
        """As it is written without what it is around."""
        return f"{self.name}:{self.preset}" if self.preset else self.name


def spelled(spec: str) -> Spelled:
    """Take a method's name apart."""
    if len(spec) > _LONGEST or spec.count("(") > _DEEPEST:
        text = spec if len(spec) <= _SHOWN else f"{spec[:_SHOWN]} ..."
        raise ConfigError(f"method {text!r}: expected a short name with at most {_DEEPEST} brackets", key="method")
    around = re.fullmatch(r"([^()]+)\((.+)\)", spec.strip())
    name, _, preset = (around[1] if around else spec).strip().partition(":")
    return Spelled(name, preset, spelled(around[2]) if around else None)
