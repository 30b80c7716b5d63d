"""What a finished run comes to: the accuracies that belong in a table, traffic, steps and time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from fewfed.errors import RunError

if TYPE_CHECKING:  # What uses results is built on top of them.
    from fewfed.trained.model import TrainedModel


@dataclass(frozen=True)
class Accuracy:
    """Best flatters: a table shows all of them."""

    best: float
    last: float
    last10: float
    """Mean of the last ten evaluations."""
    best_validation: float | None = None
    """At the evaluation that was best on the validation rows; None where there are no such rows."""

    @classmethod
    def of(cls, curve: Sequence[float], chosen: int | None = None) -> Accuracy:
        """`chosen`: which evaluation was best on the validation rows."""
        tail = curve[-10:]
        return cls(max(curve), curve[-1], sum(tail) / len(tail), None if chosen is None else curve[chosen])


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
    validation: Accuracy | None = None
    """The accuracies on the validation rows, where there are any; `accuracy` is on the test part."""

    def model(
        self, *, site: str | None = None, client: int | None = None, network: nn.Module | None = None
    ) -> TrainedModel:
        """The model that the run ended with: `fewfed.load` of its folder."""
        from fewfed.trained.loading import load

        return load(self.folder, site=site, client=client, network=network)

    def as_json(self) -> dict[str, Any]:
        """Without what only runs with validation rows have, unless this is one."""
        found = asdict(self)
        if self.validation is None:
            del found["validation"], found["accuracy"]["best_validation"]
        return found

    @classmethod
    def from_json(cls, recorded: dict[str, Any]) -> Result:
        try:
            validation = recorded.get("validation")
            accuracies = {
                "accuracy": Accuracy(**recorded["accuracy"]),
                "validation": Accuracy(**validation) if validation else None,
            }
            return cls(**{**recorded, **accuracies})
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(f"a result is damaged ({error}): expected what 'fewfed run' wrote") from error


def joined_notes(notes: Iterable[str]) -> str:
    """What is said about data and split of some runs, everything once."""
    return "; ".join(dict.fromkeys(part for note in notes for part in note.split("; ") if part))


def summarise(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Accuracies, bytes, steps, seconds and failures over the metrics of all rounds."""
    evaluated = [record for record in records if "accuracy" in record]
    chosen = best_on_validation(evaluated, "accuracy")
    found = {"accuracy": Accuracy.of([record["accuracy"] for record in evaluated], chosen)}
    if chosen is not None:
        found["validation"] = Accuracy.of([record["validation"]["accuracy"] for record in evaluated], chosen)
    return {
        **found,
        "bytes": _total([record["bytes"] for record in records]),
        "steps": sum(record["steps"] for record in records),
        "seconds": sum(record["seconds"] for record in records),
        "failed": sum(len(record["failed"]) for record in records),
    }


def best_on_validation(evaluated: Sequence[Mapping[str, Any]], metric: str) -> int | None:
    """Which of the evaluated rounds is best by a metric on the validation rows, the first of several; None where it is
    not measured on such rows."""
    found = [record.get("validation", {}).get(metric) for record in evaluated]
    if not found or any(value is None for value in found):
        return None
    return max(range(len(found)), key=lambda place: found[place])


def _total(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: _total([part[name] for part in parts]) if isinstance(value, dict) else sum(part[name] for part in parts)
        for name, value in parts[0].items()
    }
