"""What a finished run comes to: the numbers that belong in a table, traffic, steps and time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fewfed.errors import RunError
from fewfed.metric import METRICS, Metric, metric_of
from fewfed.runs.folder import METRICS as ROUNDS
from fewfed.runs.folder import RunFolder
from fewfed.runs.history import flat_rounds

if TYPE_CHECKING:  # What uses results is built on top of them.
    from fewfed.report.page.write import Written
    from fewfed.trained.model import TrainedModel


@dataclass(frozen=True)
class Summary:
    """A metric over the rounds of a run. Best flatters: a table shows all of them.

    All are NaN, and null in files, of a run in which nobody measured it.
    """

    best: float
    last: float
    last10: float
    """Mean of the last ten evaluations."""
    best_validation: float | None = None
    """At the evaluation that was best on the validation rows; None where there are no such rows."""

    @classmethod
    def of(cls, curve: Sequence[float], chosen: int | None = None, metric: Metric = METRICS["accuracy"]) -> Summary:
        """`chosen`: which evaluation was best on the validation rows."""
        if not curve:
            return cls(math.nan, math.nan, math.nan)
        tail = curve[-10:]
        best = curve[metric.place_of_best(curve)]
        return cls(best, curve[-1], sum(tail) / len(tail), None if chosen is None else curve[chosen])

    @property
    def measured(self) -> bool:
        return not math.isnan(self.last)

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        return found if self.measured else dict.fromkeys(found)

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Summary:
        return cls(**recorded) if recorded["last"] is not None else cls.of([])


@dataclass(frozen=True)
class Leak:
    """How well rows that were shared could be reconstructed when it was last measured."""

    round: int
    phase: str
    attacker: str
    """Whose R2 it is: `ridge` or `inverting`."""
    r2: float
    """Of the inputs behind what was sent; 1 is all of them, 0 no better than the mean of the attacker's own rows."""
    reidentified: float
    """In which part of all cases the nearest training row is one that was sent, by the better attacker."""
    chance: float
    rows: int
    """How many rows that were sent were tried."""
    among: int
    """Training rows to find them among."""
    held: int
    """Rows of the attackers' own, which nobody trained on."""


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
    accuracy: Summary
    """On the test part."""
    bytes: dict[str, Any]
    """Up and down through the server; `peer_to_peer` where uploads are relayed and could go directly."""
    steps: int
    seconds: float
    folder: str
    failed: int = 0
    """How many turns of clients were left out, over all rounds."""
    note: str = ""
    validation: Summary | None = None
    """The chosen metric on the validation rows, where there are any."""
    metric: str = "accuracy"
    """What the run is judged by: the chosen metric."""
    judged: Summary | None = None
    """The chosen metric on the test part, where it is not the accuracy."""
    privacy: dict[str, Any] | None = None
    """What was released about a row at most, where noise bounds it: epsilon against the server and other sites."""
    leak: Leak | None = None
    """What could be reconstructed of rows that were shared; None where none were, or it was not measured."""

    @property
    def chosen(self) -> Summary:
        """The chosen metric on the test part: what tables show."""
        return self.judged or self.accuracy

    @property
    def history(self) -> list[dict[str, Any]]:
        """One row a round, for `pandas.DataFrame` and the like: metrics, bytes, steps, seconds. Read from the folder.

        Rounds that were not evaluated have None for metrics.
        """
        records = RunFolder(Path(self.folder)).metrics()
        if not records:
            raise RunError(f"'{Path(self.folder) / ROUNDS}' is missing: expected the folder of this run where it was")
        return flat_rounds(records)

    @property
    def scores(self) -> dict[str, Any]:
        """All that is known about the last model: `scores.json` of the folder."""
        return RunFolder(Path(self.folder)).scores()

    @property
    def per_class(self) -> list[dict[str, Any]]:
        """The last model, one row a class: test rows, precision, recall, F1, AUC."""
        return list(self.scores["per_class"])

    @property
    def per_site(self) -> list[dict[str, Any]]:
        """The last model, one row a site: training rows, test rows, metrics; none where the data know no sites."""
        return list(self.scores["per_site"])

    def model(
        self, *, site: str | None = None, client: int | None = None, network: nn.Module | str | None = None
    ) -> TrainedModel:
        """The model that the run ended with: `fewfed.load` of its folder."""
        from fewfed.trained.loading import load

        return load(self.folder, site=site, client=client, network=network)

    def _repr_html_(self) -> str:
        """For notebooks: its numbers and its curve."""
        from fewfed.report.notebook import result_html

        return result_html(self)

    def report(self) -> Written:
        """Write a page about this run into its folder: `fewfed report`."""
        from fewfed.report.page.write import write_report

        return write_report([Path(self.folder)])

    def as_json(self) -> dict[str, Any]:
        """Without what only runs with validation rows, or with shared ones, have, unless this is one."""
        found = {**asdict(self), "accuracy": self.accuracy.as_json(), "chosen": self.chosen.as_json()}
        del found["judged"]
        if self.privacy is None:
            del found["privacy"]
        if self.leak is None:
            del found["leak"]
        if self.validation is None:
            del found["validation"], found["accuracy"]["best_validation"], found["chosen"]["best_validation"]
        return found

    @classmethod
    def from_json(cls, recorded: dict[str, Any]) -> Result:
        try:
            validation = recorded.get("validation")
            rest = {name: value for name, value in recorded.items() if name not in _NESTED}
            leak = recorded.get("leak")
            return cls(
                **rest,
                accuracy=Summary.from_json(recorded["accuracy"]),
                validation=Summary(**validation) if validation else None,
                leak=Leak(**leak) if leak else None,
                # A run from before there were other metrics says nothing of them.
                judged=Summary.from_json(recorded["chosen"]) if rest.get("metric", "accuracy") != "accuracy" else None,
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(f"a result is damaged ({error}): expected what 'fewfed run' wrote") from error


_NESTED = ("accuracy", "validation", "chosen", "leak")


def joined_notes(notes: Iterable[str]) -> str:
    """What is said about data and split of some runs, everything once."""
    return "; ".join(dict.fromkeys(part for note in notes for part in note.split("; ") if part))


def summarise(records: Sequence[dict[str, Any]], metric: str = "accuracy") -> dict[str, Any]:
    """Accuracies, the chosen metric, bytes, steps, seconds, failures and the leak over the metrics of all rounds."""
    wanted = metric_of(metric)
    evaluated = [record for record in records if record.get("accuracy") is not None]
    chosen = best_on_validation(evaluated, metric, wanted)
    found = {"accuracy": Summary.of([record["accuracy"] for record in evaluated], chosen)}
    if metric != "accuracy":
        found["judged"] = Summary.of([record[metric] for record in evaluated], chosen, wanted)
    if chosen is not None:
        found["validation"] = Summary.of([record["validation"][metric] for record in evaluated], chosen, wanted)
    return {
        **found,
        "bytes": _total([record["bytes"] for record in records]),
        "steps": sum(record["steps"] for record in records),
        "seconds": sum(record["seconds"] for record in records),
        "failed": sum(len(record["failed"]) for record in records),
        **({} if (leak := last_leak(records)) is None else {"leak": leak}),
    }


def last_leak(records: Sequence[Mapping[str, Any]]) -> Leak | None:
    """What was last measured of shared rows."""
    names = [field.name for field in fields(Leak) if field.name != "round"]
    for record in reversed(records):
        found = record.get("leak", {})
        if "r2" in found:
            return Leak(round=record["round"], **{name: found[name] for name in names})
    return None


def best_on_validation(
    evaluated: Sequence[Mapping[str, Any]], name: str, metric: Metric = METRICS["accuracy"]
) -> int | None:
    """Which of the evaluated rounds is best by an entry on the validation rows, the first of several; None where it is
    not measured on such rows. `metric`: which way that entry is better."""
    found = [record.get("validation", {}).get(name) for record in evaluated]
    if not found or any(value is None for value in found):
        return None
    return metric.place_of_best(found)


def _total(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: _total([part[name] for part in parts]) if isinstance(value, dict) else sum(part[name] for part in parts)
        for name, value in parts[0].items()
    }
