"""What every tracker is: told what a run is, then its rounds one by one, then what it came to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

FOLDER = "tracking"
"""Below a run folder: what trackers write there."""


@dataclass(frozen=True)
class About:
    """What a tracker is told of a run before its first round."""

    run: Path
    """The run folder."""
    name: str
    group: str
    """The comparison it belongs to; empty for a run of its own."""
    settings: Mapping[str, Any]
    """Everything that was set, by name, as in `training.lr`."""
    known: str
    """What the tracker called this run before, where it is continued; empty at first."""
    sent: int
    """The last round that the tracker was given before."""


class Tracker(Protocol):
    """A program that is told of rounds. Whatever a function raises, the run goes on without the tracker."""

    def begin(self, about: About) -> tuple[str, int]:
        """What the tracker calls this run, to be kept; and up to which round it has all, so that none comes twice."""

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """A finished round."""

    def end(self, summary: Mapping[str, float] | None) -> None:
        """What the run came to; nothing where it was stopped. Nothing is lost afterwards if the process dies."""


def flat(content: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Entries of nested mappings by names with dots."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
