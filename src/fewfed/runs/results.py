"""What a finished run comes to: the three accuracies that belong in a table, traffic, steps and time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fewfed.errors import RunError


@dataclass(frozen=True)
class Accuracy:
    """Best flatters: a table shows all three."""

    best: float
    last: float
    last10: float
    """Mean of the last ten evaluations."""

    @classmethod
    def of(cls, curve: Sequence[float]) -> Accuracy:
        tail = curve[-10:]
        return cls(max(curve), curve[-1], sum(tail) / len(tail))


@dataclass(frozen=True)
class Result:
    """The summary of one run."""

    method: str
    preset: str
    data: str
    split: str
    clients: int
    rounds: int
    seed: int
    accuracy: Accuracy
    bytes: dict[str, Any]
    """Up and down through the server; `peer_to_peer` where uploads are relayed and could go directly."""
    steps: int
    seconds: float
    folder: str
    failed: int = 0
    """How many turns of clients were left out, over all rounds."""
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, recorded: dict[str, Any]) -> Result:
        try:
            return cls(**{**recorded, "accuracy": Accuracy(**recorded["accuracy"])})
        except (KeyError, TypeError) as error:
            raise RunError(f"a result is damaged ({error}): expected what 'fewfed run' wrote") from error


def joined_notes(notes: Iterable[str]) -> str:
    """What is said about data and split of some runs, everything once."""
    return "; ".join(dict.fromkeys(part for note in notes for part in note.split("; ") if part))


def summarise(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Accuracies, bytes, steps, seconds and failures over the metrics of all rounds."""
    curve = [record["accuracy"] for record in records if "accuracy" in record]
    return {
        "accuracy": Accuracy.of(curve),
        "bytes": _total([record["bytes"] for record in records]),
        "steps": sum(record["steps"] for record in records),
        "seconds": sum(record["seconds"] for record in records),
        "failed": sum(len(record["failed"]) for record in records),
    }


def _total(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: _total([part[name] for part in parts]) if isinstance(value, dict) else sum(part[name] for part in parts)
        for name, value in parts[0].items()
    }
