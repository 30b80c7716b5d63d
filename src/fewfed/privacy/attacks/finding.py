"""What an attack found: numbers with their threat model, chance level and interval, never a number alone."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Threat:
    """Whose attack it is."""

    who: str
    """Who attacks: "the server", "another site", "whoever gets the model"."""
    sees: str
    """What of the run it sees."""
    holds: str
    """What it holds beside: rows of its own, the network, nothing."""


@dataclass(frozen=True)
class Measure:
    """One number."""

    what: str
    """As in "re-identified among 400, top 1"."""
    value: float
    low: float
    high: float
    """The 95 % interval; an end that is infinite is not known."""
    rows: int
    """How many rows, clients or guesses it is of."""
    chance: float | None = None
    """What guessing gives; None where there is no such thing."""
    raw: float | None = None
    """What the same attack gets from undefended raw rows; None where that means nothing."""
    larger_leaks: bool = True
    """Whether a larger number means a worse leak (an error: a smaller one)."""


@dataclass(frozen=True)
class Finding:
    """One attack on one phase of one round."""

    attack: str
    variant: str
    """Which attacker of several: a decoder, an estimator; empty where there is one."""
    threat: Threat
    round: int
    """Counted from 1."""
    phase: str
    measures: tuple[Measure, ...]
    note: str = ""
    """Further sentences, one a line."""
    picture: bytes = b""
    """A PNG file, where there is something to look at."""

    def as_json(self) -> dict[str, Any]:
        """Without the picture."""
        found = dataclasses.asdict(self)
        del found["picture"]
        for measure in found["measures"]:  # JSON has no infinity.
            measure |= {end: measure[end] if math.isfinite(measure[end]) else None for end in ("low", "high")}
        return found


@dataclass(frozen=True)
class DoesNotApply:
    """An attack that has nothing to work on, and why: no zero is printed for it."""

    attack: str
    why: str
