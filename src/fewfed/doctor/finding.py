"""One thing that was looked at, and what was found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["fine", "limited", "absent", "broken"]
"""`limited`: it works, with less than it could have. `absent`: something optional is not there, or does not fit.
`broken`: fewfed does not work as it should."""


@dataclass(frozen=True)
class Finding:
    """What was found of one thing, in words; `advice` is what to do for more."""

    section: str
    topic: str
    state: State
    says: str
    advice: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def size_of(count: float) -> str:
    """Bytes for a person."""
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
