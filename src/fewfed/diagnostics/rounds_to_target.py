"""How many rounds a run needs to reach an accuracy (FLea, ICLR Fig. 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def rounds_to(target: float, records: Sequence[Mapping[str, Any]]) -> int | None:
    """The first round whose recorded accuracy is at least `target`, a fraction; None where none is."""
    reached = (int(record["round"]) for record in records if record.get("accuracy", -1.0) >= target)
    return min(reached, default=None)
