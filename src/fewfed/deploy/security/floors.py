"""Up to which round something is forgotten, for each run: a bounded memory must not take the old for new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any


class Floors:
    """Of every run, the last round of which something is forgotten: what is new must be of a later one."""

    def __init__(self, most_runs: int = 256) -> None:
        """`most_runs`: of how many runs it is known; what a site does in the oldest ones is not its business any more,
        since it takes part in one run at a time."""
        self._most_runs = most_runs
        self._rounds: OrderedDict[str, int] = OrderedDict()

    def raise_to(self, run: str, round: int) -> None:
        """Something of this round is forgotten."""
        self._rounds[run] = max(round, self._rounds.pop(run, round))
        while len(self._rounds) > self._most_runs:
            self._rounds.popitem(last=False)

    def cover(self, run: str, round: int) -> bool:
        """Whether something of this round may have been forgotten."""
        return round <= self._rounds.get(run, -1)

    def as_json(self) -> list[list[Any]]:
        return [list(entry) for entry in self._rounds.items()]

    def restore(self, facts: Sequence[Sequence[Any]]) -> None:
        """Go back to what `as_json` gave. `TypeError` or `ValueError` where it did not."""
        self._rounds = OrderedDict((str(run), int(round)) for run, round in facts)
