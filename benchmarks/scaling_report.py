"""What the measurements of the scaling study say: ratios to the reference of the same repeat, a table and a picture."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratios import Ratios

from fewfed.report.curves import require_matplotlib

Record = Mapping[str, Any]

AXES = {"clients": "clients", "cohort": "clients a round", "processes": "worker processes"}
TIMES = {"clients": "time per round", "cohort": "time per client turn", "processes": "speed"}
MOST_TIME, MOST_MEMORY = 1.10, 1.20
"""What the largest federation may cost beside the reference."""


@dataclass(frozen=True)
class Point:
    """One setting over all repeats."""

    part: str
    series: str
    x: int
    reference: int
    time: Ratios
    """Of a round (clients), of one client's turn (cohort); for processes the speed, its inverse."""
    memory: Ratios
    start: Ratios
    states: int


def points(records: Sequence[Record]) -> list[Point]:
    """Settings in the order they were measured, with their ratios."""
    groups: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record["part"], record["series"], record["x"]), []).append(record)
    found = []
    for (part, series, x), mine in groups.items():
        reference = mine[0]["reference"]
        theirs = {record["repeat"]: record for record in groups[part, series, reference]}
        pairs = [(record, theirs[record["repeat"]]) for record in mine]
        found.append(
            Point(
                part,
                series,
                x,
                reference,
                time=Ratios(tuple(_time_ratio(part, one, other) for one, other in pairs)),
                memory=Ratios(tuple(one["memory_mib"] / other["memory_mib"] for one, other in pairs)),
                start=Ratios(tuple(one["start_seconds"] / other["start_seconds"] for one, other in pairs)),
                states=mine[-1]["states"],
            )
        )
    return found


def _time_ratio(part: str, one: Record, other: Record) -> float:
    # The median over rounds: a neighbour's burst hits some rounds, work that grows with the federation hits all.
    mine, theirs = (float(statistics.median(record["round_seconds"])) for record in (one, other))
    if part == "processes":
        return theirs / mine
    return mine / theirs * float(other["cohort"] / one["cohort"])


def table(records: Sequence[Record]) -> str:
    """One Markdown table a part: medians with the range over repeats; the reference is marked."""
    found = points(records)
    parts = []
    for part in dict.fromkeys(point.part for point in found):
        lines = [
            f"| run | {AXES[part]} | {TIMES[part]} | peak memory | start-up | states kept |",
            "|---|---|---|---|---|---|",
        ]
        for point in found:
            if point.part == part:
                known = point.x == point.reference
                cells = ["1 (reference)" if known else str(r) for r in (point.time, point.memory, point.start)]
                lines.append(f"| {point.series} | {point.x:,} | {' | '.join(cells)} | {point.states:,} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def verdicts(records: Sequence[Record]) -> list[str]:
    """Whether the largest federation stays within what it may cost, a line for each method."""
    lines = []
    found = [point for point in points(records) if point.part == "clients"]
    for point in _largest(found):
        kept = point.time.median <= MOST_TIME and point.memory.median <= MOST_MEMORY
        lines.append(
            f"{point.series}, {point.x:,} against {point.reference:,} clients: time {point.time.median:.2f} "
            f"(at most {MOST_TIME:.2f}), memory {point.memory.median:.2f} (at most {MOST_MEMORY:.2f}): "
            f"{'kept' if kept else 'NOT KEPT'}"
        )
    return lines


def _largest(found: Iterable[Point]) -> list[Point]:
    largest: dict[str, Point] = {}
    for point in found:
        if point.series not in largest or point.x > largest[point.series].x:
            largest[point.series] = point
    return list(largest.values())


def disturbance(records: Sequence[Record]) -> str:
    """How busy others kept the cores: on a machine that is not quiet, single ratios of time mean little."""
    shares = [record["others"] for record in records]
    worst = max(records, key=lambda record: float(record["others"]))
    return (
        f"Others kept {100 * statistics.median(shares):.0f} % of the cores busy (median over measurements; at most "
        f"{100 * worst['others']:.0f} %, {worst['part']} {worst['x']:,}, repeat {worst['repeat'] + 1})."
    )


def draw(records: Sequence[Record], path: Path) -> None:
    """Three small panels, one a part; parts that were not measured stay out."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = points(records)
    parts = list(dict.fromkeys(point.part for point in found))
    figure, grid = pyplot.subplots(
        1, len(parts), figsize=(4.2 * len(parts), 3.6), constrained_layout=True, squeeze=False
    )
    for axes, part in zip(grid[0], parts, strict=True):
        mine = [point for point in found if point.part == part]
        for series in dict.fromkeys(point.series for point in mine):
            line = [point for point in mine if point.series == series]
            xs = [point.x for point in line]
            colour = None
            for name, style, ratios in (
                (TIMES[part], "o-", [point.time for point in line]),
                ("peak memory", "s--", [point.memory for point in line]),
            ):
                medians = [ratio.median for ratio in ratios]
                spread = [
                    [ratio.median - min(ratio.values) for ratio in ratios],
                    [max(ratio.values) - ratio.median for ratio in ratios],
                ]
                label = f"{series}: {name}"
                bars = axes.errorbar(xs, medians, spread, fmt=style, color=colour, markersize=4, capsize=2, label=label)
                colour = bars[0].get_color()  # One colour a series: full lines are time, broken ones memory.
        xs = sorted({point.x for point in mine})
        axes.set_xscale("log", base=2 if part == "processes" else 10)
        if part == "processes":
            axes.plot(xs, xs, ":", color="grey", label="one for one")
            axes.set_xticks(xs, [str(x) for x in xs])
            axes.minorticks_off()
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(AXES[part])
        axes.set_ylabel(f"ratio to {mine[0].reference:,}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=6)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
