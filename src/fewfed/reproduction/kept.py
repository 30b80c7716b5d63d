"""Finished cells that are kept: one small compressed record each, so that tables fill over time and machines."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewfed.data.readers.options import DataOptions
from fewfed.engine import storage
from fewfed.errors import DataError, RunError
from fewfed.reproduction.outcome import Outcome
from fewfed.reproduction.study import Planned, Study
from fewfed.runs.experiment import Experiment, Resolved
from fewfed.training import Training

FOLDER = "results"
MOST_BYTES = 10_000_000
"""What all records together may take: they are part of the repository."""

_SUFFIX = ".json.gz"
_MOST_UNPACKED = 1 << 22
_DIGITS = 5
_DAMAGED = (
    *(OSError, EOFError, zlib.error),
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError),
)
"""What reading a file that is no record may raise."""
_WITHOUT_EFFECT = ("executor", "exact", "checkpoint_seconds", "rows_public", "leak")
"""Fields of an experiment that only say how it is computed, what is allowed, and what is measured beside."""


@dataclass(frozen=True)
class Record:
    """One kept cell: what was run, what came of it, and by what."""

    digest: str
    """Of the configuration: a cell whose settings have changed since is to be run again."""
    outcome: Outcome
    made: Mapping[str, str]
    """Version, commit, torch, hardware."""


@dataclass(frozen=True)
class Kept:
    """The records of all studies, `<study>/<cell>.json.gz`."""

    folder: Path

    def of(self, study: Study) -> dict[str, Record]:
        """Records of a study by the names of their cells, also of cells it no longer has."""
        place = self.folder / study.name
        names = sorted(place.glob(f"*{_SUFFIX}")) if place.is_dir() else []
        return {path.name.removesuffix(_SUFFIX): _read(path) for path in names}

    def fitting(self, study: Study) -> dict[str, Record]:
        """Those that were made with the settings the study has now; for cells without one, another study's record of
        the same settings, if it measured what this study shows."""
        records, elsewhere = self.of(study), self._by_digest(study)
        found: dict[str, Record] = {}
        for run in study.runs:
            digest = digest_of(run.resolved)
            own = records.get(run.name)
            record = own if own is not None and _counts(own, digest, study) else elsewhere.get(digest)
            if record is not None:
                found[run.name] = record
        return found

    def stale(self, study: Study) -> list[str]:
        """The study's own records that do not count, by their cells' names: made with other settings, measured by
        another metric than it compares now, or of cells that it has no more."""
        now = {run.name: digest_of(run.resolved) for run in study.runs}
        records = self.of(study)
        return [name for name, record in records.items() if not _counts(record, now.get(name, ""), study)]

    def _by_digest(self, study: Study) -> dict[str, Record]:
        """Records of all other studies that show what this one does, by the digests of their settings."""
        places = sorted(self.folder.glob(f"*/*{_SUFFIX}")) if self.folder.is_dir() else []
        records = [_read(path) for path in places if path.parent.name != study.name]
        return {record.digest: record for record in records if _serves(record.outcome, study)}

    def add(self, study: Study, run: Planned, outcome: Outcome, made: Mapping[str, str]) -> Path:
        """Keep a finished cell in place of what was kept of it before."""
        path = self.folder / study.name / f"{run.name}{_SUFFIX}"
        content = _packed(study, run, outcome, made)
        others = sum(file.stat().st_size for file in self.folder.rglob(f"*{_SUFFIX}") if file != path)
        if others + len(content) > MOST_BYTES:
            raise RunError(f"the records in '{self.folder}' would take more than {MOST_BYTES} bytes: remove old ones")
        path.parent.mkdir(parents=True, exist_ok=True)
        storage.write(path, content)
        return path


def _counts(own: Record, digest: str, study: Study) -> bool:
    """Whether a study's own record of a cell says what the study compares now."""
    return own.digest == digest and own.outcome.metric in study.metric


def _serves(outcome: Outcome, study: Study) -> bool:
    return outcome.metric == study.metric[0] and set(study.terms) <= outcome.terms.keys()


def digest_of(resolved: Resolved) -> str:
    """A digest of what a run computes. Only what differs from the defaults goes in, so that a new setting, which leaves
    everything as it was unless somebody sets it, leaves the digest as it was."""
    run = resolved.identity
    settled, usual = run.experiment.settled({}), Experiment().settled({})
    experiment = {name: value for name, value in _changed(settled, usual).items() if name not in _WITHOUT_EFFECT}
    parts = {
        "method": [run.spec, dict(run.values)],
        "experiment": experiment,
        "training": _changed(run.training, Training()),
        "data": _changed(run.options, DataOptions().without_limits()),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _changed(given: Any, default: Any) -> dict[str, Any]:
    now, before = dataclasses.asdict(given), dataclasses.asdict(default)
    return {name: value for name, value in now.items() if value != before[name]}


def _packed(study: Study, run: Planned, outcome: Outcome, made: Mapping[str, str]) -> bytes:
    every = list(range(1, outcome.rounds + 1))
    record: dict[str, Any] = {
        "study": study.name,
        "at": dict(run.at),
        "digest": digest_of(run.resolved),
        "metric": outcome.metric,
        "rounds": outcome.rounds,
        "evaluated": None if list(outcome.evaluated) == every else list(outcome.evaluated),
        "values": [round(value, _DIGITS) for value in outcome.values],
        "seconds": round(outcome.seconds, 1),
        "failed": outcome.failed,
        "note": outcome.note,
        "terms": {name: round(value, 6) for name, value in outcome.terms.items()},
        "made": dict(made),
        **({} if outcome.chosen is None else {"best_validation": outcome.chosen}),
        **{
            name: [round(value, _DIGITS) for value in pair]
            for name, pair in (("megabytes", outcome.megabytes), ("leak", outcome.leak))
            if pair is not None
        },
    }
    text = json.dumps(record, separators=(",", ":"), sort_keys=True)
    return gzip.compress(text.encode(), mtime=0)  # The same record, the same bytes.


def _read(path: Path) -> Record:
    try:
        with gzip.open(path) as file:
            recorded = json.loads(file.read(_MOST_UNPACKED))
        rounds, values = int(recorded["rounds"]), tuple(map(float, recorded["values"]))
        evaluated = recorded["evaluated"] or range(1, rounds + 1)
        if not values or len(values) != len(evaluated):
            raise ValueError("its curve has another length than its rounds")
        if not all(map(math.isfinite, values)):
            raise ValueError("its curve has values that are no numbers")
        outcome = Outcome(
            metric=str(recorded["metric"]),
            evaluated=tuple(map(int, evaluated)),
            values=values,
            rounds=rounds,
            seconds=float(recorded["seconds"]),
            failed=int(recorded["failed"]),
            note=str(recorded["note"]),
            terms={str(name): float(value) for name, value in recorded["terms"].items()},
            chosen=int(recorded["best_validation"]) if "best_validation" in recorded else None,
            megabytes=_pair(recorded.get("megabytes")),
            leak=_pair(recorded.get("leak")),
        )
        if outcome.chosen is not None and not 0 <= outcome.chosen < len(outcome.values):
            raise ValueError("its best validation is outside of its curve")
        made = {str(name): str(value) for name, value in recorded["made"].items()}
        return Record(str(recorded["digest"]), outcome, made)
    except _DAMAGED as error:
        raise DataError(
            f"'{path}' is no record of a finished cell ({type(error).__name__}: {error}): restore or remove it"
        ) from error


def _pair(values: Any) -> tuple[float, float] | None:
    """Two numbers, where an older record has none."""
    if values is None:
        return None
    first, second = values
    return float(first), float(second)
