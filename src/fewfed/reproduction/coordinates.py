"""Where a run stands in a table: axis names and values, and when two values are the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Value = str | int | float
Coordinates = Mapping[str, Value]

AXES = ("data", "split", "clients", "method", "seed")
"""The axes every run has; a sweep adds more."""


def canonical(value: Any) -> str:
    """Equal for values that mean the same: numbers as numbers, text without regard to case and outer blanks."""
    text = str(value).strip()
    try:
        return f"{float(text):g}"
    except ValueError:
        return text.casefold()


def is_one_of(value: Value, wanted: Iterable[Value]) -> bool:
    return canonical(value) in {canonical(option) for option in wanted}


def listed(value: Any) -> list[Any]:
    """A list as it is, anything else as the only entry of one."""
    return list(value) if isinstance(value, (list, tuple)) else [value]
