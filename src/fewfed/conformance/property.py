"""A promise of every method, and what comes of looking whether one keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from fewfed.conformance.reference import Reference

_SHOWN = 3


class Broken(AssertionError):
    """A method does not keep a promise; the message says how."""


@dataclass(frozen=True)
class Property:
    """A promise in a sentence, and the function that raises `Broken` where a method does not keep it.

    The function returns why the promise does not apply to a method; nothing where it does.
    """

    name: str
    holds: Callable[[Reference], str]


@dataclass(frozen=True)
class Verdict:
    """What was found of one promise."""

    name: str
    state: Literal["passed", "failed", "does not apply"]
    reason: str = ""


def refuse(problems: Iterable[str], promise: str) -> None:
    """Raise where there are problems: what was promised, and the first of what was found."""
    found = list(problems)
    if found:
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise Broken(f"{promise}, but {'; '.join(found[:_SHOWN])}{more}")


def differing(left: list[dict[str, object]], right: list[dict[str, object]]) -> list[str]:
    """In which entries the metrics of two runs differ."""
    found = [] if len(left) == len(right) else [f"there are {len(left)} rounds, not {len(right)}"]
    for number, (ours, theirs) in enumerate(zip(left, right, strict=False), 1):
        names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        found += [f"round {number}: '{name}' differs" for name in names]
    return found
