"""How long a worker may take over a piece of work before it counts as stuck."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from fewfed.engine.job import PSEUDO_CLIENT, Job
from fewfed.phase import Clock

LEAST = 60.0
"""Seconds that everything may take."""

TIMES = 20.0
"""How many times the slowest finished turn of its phase another one may take."""

FIRST = 600.0
"""Seconds that a turn may take while no turn of its phase has finished, and one more for every row of every epoch."""

_UNKNOWN_ROWS = 1000
"""Rows a client is taken to have where that cannot be told."""

Message = dict[str, Any]


class Deadline:
    """Seconds allowed for the messages that workers get. `seconds`: for one turn; 0 = by the turns that finished."""

    def __init__(self, job: Job, seconds: float) -> None:
        self._job = job
        self._seconds = math.inf if seconds < 0 else seconds
        self._slowest: dict[tuple[str, str], tuple[float, Message]] = {}
        self.least = self._seconds or LEAST
        """No limit is below this one."""

    def finished(self, message: Message, seconds: float) -> None:
        """A worker was done with a message after so many seconds."""
        kind = _kind(message)
        if kind not in self._slowest or seconds > self._slowest[kind][0]:
            self._slowest[kind] = (seconds, message)

    def limit(self, message: Message) -> float:
        """Seconds that a message may take. Looks up how many rows clients have: ask only after `least` seconds."""
        if self._seconds:
            return self._seconds * len(_clients(message))
        work = self._work(message)
        if _kind(message) not in self._slowest:
            return FIRST + work
        seconds, slowest = self._slowest[_kind(message)]
        return max(LEAST, TIMES * seconds * max(1.0, work / self._work(slowest)))

    def _work(self, message: Message) -> float:
        """Rows that a message has to do with, each counted once an epoch."""
        if message["kind"] in ("evaluate", "answer"):
            return float(max(1, message["last"] - message["first"]))
        phase = self._job.phase(message["phase"], Clock(message["round"], message["rounds"], message["epochs"]))
        return float(max(1, phase.epochs) * max(1, sum(map(self._rows, _clients(message)))))

    def _rows(self, client: int) -> int:
        federation = self._job.federation
        if client == PSEUDO_CLIENT:  # Everybody's.
            return (federation.most_rows or _UNKNOWN_ROWS) * len(federation)
        return _or(_UNKNOWN_ROWS, lambda: federation.size(client))


def _kind(message: Message) -> tuple[str, str]:
    """Turns of a phase are compared with each other, one by one or bundled; parts of a scoring too."""
    return ("", message["phase"]) if message["kind"] in ("run", "bundle") else (message["kind"], "")


def _clients(message: Message) -> list[int]:
    found: Iterable[int] = message.get("clients", [message.get("client", PSEUDO_CLIENT)])
    return list(found)


def _or(otherwise: int, ask: Callable[[], int]) -> int:
    try:
        return ask()
    except Exception:  # A client whose rows cannot be read; its turn says why.
        return otherwise
