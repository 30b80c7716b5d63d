"""From single measurements to ratios and a markdown table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from ratios import Ratios

from peers.measure import Run


@dataclass(frozen=True)
class Pair:
    """A run and the two runs of the bare loop around it."""

    own: Run
    before: Run
    after: Run

    @property
    def rounds_ratio(self) -> float:
        return ratio(self.own.rounds, self.before.rounds, self.after.rounds)

    @property
    def whole_ratio(self) -> float:
        return ratio(self.own.whole, self.before.whole, self.after.whole)


@dataclass
class Entry:
    """One simulator in one setting."""

    name: str
    title: str
    version: str = ""
    pairs: list[Pair] = field(default_factory=list)
    not_measured: str = ""
    """Why it cannot be run at all."""
    failures: list[str] = field(default_factory=list)
    """Repeats that ended without a result, and why."""

    @property
    def measured(self) -> bool:
        return bool(self.pairs)

    @property
    def reason(self) -> str:
        return self.not_measured or "; ".join(self.failures) or "no repeat was run"

    @property
    def rounds_ratio(self) -> Ratios:
        return Ratios(tuple(pair.rounds_ratio for pair in self.pairs))

    @property
    def whole_ratio(self) -> Ratios:
        return Ratios(tuple(pair.whole_ratio for pair in self.pairs))

    @property
    def peak_mb(self) -> float:
        return max(pair.own.peak_mb for pair in self.pairs)


def ratio(own: float, before: float, after: float) -> float:
    """Time as a multiple of the mean of the two bare runs around it."""
    return own / ((before + after) / 2)


def bare_runs(entries: Sequence[Entry]) -> list[Run]:
    """Every run of the bare loop once; neighbours share the one between them."""
    runs = [run for entry in entries for pair in entry.pairs for run in (pair.before, pair.after)]
    return list({id(run): run for run in runs}.values())


def unrest(runs: Sequence[Run]) -> Ratios:
    """The bare loop's rounds as multiples of their median: how steady the machine was."""
    median = statistics.median(run.rounds for run in runs)
    return Ratios(tuple(run.rounds / median for run in runs))


def markdown(title: str, entries: Sequence[Entry]) -> str:
    """One setting's table: what was measured, fastest first, then what was not and why."""
    lines = [
        f"### {title}",
        "",
        "| simulator | processes | rounds / bare | whole command / bare | peak memory, MB |",
        "|---|---|---|---|---|",
    ]
    measured = sorted((entry for entry in entries if entry.measured), key=lambda entry: entry.rounds_ratio.median)
    bare = bare_runs(entries)
    if bare:
        lines.append(f"| bare PyTorch loop | {bare[0].processes} | 1 | 1 | {max(run.peak_mb for run in bare):.0f} |")
    for entry in measured:
        lines.append(
            f"| {_label(entry)} | {entry.pairs[0].own.processes} | {entry.rounds_ratio} | {entry.whole_ratio} "
            f"| {entry.peak_mb:.0f} |"
        )
    for entry in entries:
        if not entry.measured:
            lines.append(f"| {_label(entry)} | | not measured: {entry.reason} | | |")
    lines += [f"\n{_label(entry)} failed in {'; '.join(entry.failures)}" for entry in measured if entry.failures]
    if bare:
        steady = unrest(bare)
        lines += ["", f"The bare loop's {len(bare)} runs took {steady.low:.2f} to {steady.high:.2f} of their median."]
    return "\n".join([*lines, ""])


def _label(entry: Entry) -> str:
    return f"{entry.title} {entry.version}".strip()
