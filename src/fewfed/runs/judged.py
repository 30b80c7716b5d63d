"""What a run of a bake-off is judged by: the mean of the last third of its evaluations, on validation or test rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fewfed.data.federation import HeldOut
from fewfed.runs.folder import RunFolder
from fewfed.runs.results import Result

_NOTHING = 0.002
"""A gain that is none."""
TELLING = 6
"""With fewer evaluations nobody can tell what is still getting better: two thirds of two each."""


def score(result: Result, on: HeldOut, own: bool) -> float | None:
    """`own`: every site's model on that site's rows, in the mean over sites, and not on those of all. None where that
    was not measured."""
    curve = curve_of(RunFolder(Path(result.folder)).metrics(), result.metric, on, own)
    return tail(curve) if curve else None


def measures_sites(result: Result) -> bool:
    """Whether a run's metric was measured on the rows of single sites too."""
    records = RunFolder(Path(result.folder)).metrics()
    return all(curve_of(records, result.metric, on, own=True) for on in ("validation", "test"))


def curve_of(records: Sequence[Mapping[str, Any]], metric: str, on: HeldOut, own: bool) -> list[float]:
    """A metric by evaluation; nothing where it is missing in one of them."""
    evaluated = [record for record in records if "accuracy" in record]
    parts = [record.get("validation", {}) if on == "validation" else record for record in evaluated]
    # A model of a site's own says what it does on its own rows; a common one what it does at each site.
    names = (f"{metric}_own_group", f"{metric}_groups") if own else (metric,)
    found = [next((part[name] for name in names if part.get(name) is not None), None) for part in parts]
    known = [float(value) for value in found if value is not None]
    return known if len(known) == len(found) else []


def tail(curve: Sequence[float]) -> float:
    """The mean of the last third: steadier than the last evaluation, and fit for runs of any length."""
    return statistics.fmean(curve[-max(1, len(curve) // 3) :])


def still_rises(curve: Sequence[float], lower_is_better: bool) -> bool:
    """Whether the last third is better than the third before it by more than evaluations vary."""
    third = len(curve) // 3
    if len(curve) < TELLING:
        return False
    before, after = curve[-2 * third : -third], curve[-third:]
    gain = statistics.fmean(after) - statistics.fmean(before)
    vary = math.sqrt((statistics.variance(before) + statistics.variance(after)) / third)
    return (-gain if lower_is_better else gain) > max(vary, _NOTHING)
