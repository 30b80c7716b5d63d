"""What a report says of privacy: what leaves a site, what could be had from it, what noise bounds."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from fewfed.errors import FewfedError
from fewfed.methods.registry import choose
from fewfed.report.catalogue import phase_texts
from fewfed.report.leak import ATTACKERS, EXPLAINED
from fewfed.report.page.detail import known
from fewfed.report.page.setting import Labelled
from fewfed.report.page.sheets import Cell, Sheet, begun, shade
from fewfed.report.rendering import printable
from fewfed.runs.budget import told_privacy
from fewfed.runs.measure import MeasureInputs
from fewfed.spelling import spelled
from fewfed.version import __version__

_MOST_PHASES = 20
_JOINED = (
    "In brackets: what it is, where its name does not say so; mean and sum: joined over sites to one; concat and keep: "
    "used as each site sent it; how many rows are sent for each row that a site has."
)
UNKNOWN = "not known here: the method is a file, or of another version"


def leaving(rows: Sequence[Labelled]) -> Sheet | None:
    """What leaves a site in each phase, from the method's declarations; and how much of it there was."""
    found = []
    for row in rows:
        details = [detail for detail in row.details if detail.config]
        if details:
            phases = _means([detail.phases for detail in details])
            sent = [*_measured(phases), *(_declared(details[0].config) or (UNKNOWN,))]
            size = ", ".join(f"{name} {mb:.3g}" for name, mb in list(phases.items())[:_MOST_PHASES])
            cells = (Cell(row.label), Cell("; ".join(sent)), Cell(size, sum(phases.values())))
            found.append(cells)
    if not found:
        return None
    over = ", mean over seeds" if any(len(row.group.runs) > 1 for row in rows) else ""
    caption = f"What leaves a site in each phase, and how it is joined; MB sent by all clients in a whole run{over}"
    return Sheet("leaving", caption, ("method", "leaves a site", "MB a phase"), tuple(found), words=3, note=_JOINED)


def _means(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each phase over runs; one that a run did not have sent nothing there."""
    names = dict.fromkeys(name for one in found for name in one)
    return {name: statistics.fmean(one.get(name, 0.0) for one in found) for name in names}


def _measured(phases: Mapping[str, float]) -> list[str]:
    """What sites send before the first round so that inputs are scaled alike: no method declares it, and it leaves all
    the same."""
    return [f"{text}, before the first round" for text in _measuring() if phases.get(text.partition(": ")[0], 0.0) > 0]


@cache
def _measuring() -> tuple[str, ...]:
    """A thousand rounds are asked for it, and it is the same for every row."""
    return tuple(phase_texts(MeasureInputs()))


def _declared(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The phases of a method of this package and version."""
    if config.get("fewfed") != __version__:
        return ()
    return _phases(str(config.get("method", "")), json.dumps(config.get("method_fields", {})))


@lru_cache(maxsize=1000)
def _phases(spec: str, fields: str) -> tuple[str, ...]:
    """What leaves a client; nothing for a method in a file, since code from somewhere else is not run."""
    try:
        return () if spelled(spec).files else tuple(phase_texts(choose(spec, dict(json.loads(fields))).method))
    except (FewfedError, TypeError, ValueError, AttributeError):
        return ()


def leaks(rows: Sequence[Labelled]) -> Sheet | None:
    """What the simple attackers of every run could reconstruct of shared rows."""
    cells, plain = [], []
    for row in rows:
        measured = [run.leak for run in row.group.runs if run.leak is not None]
        if not measured:
            continue
        r2, part = row.group.leak("r2"), row.group.leak("reidentified")
        assert r2 is not None
        assert part is not None
        last = measured[0]
        by = ATTACKERS.get(last.attacker, printable(last.attacker))
        cells.append((
            Cell(row.label), Cell(by), Cell(f"{r2:.2f}", r2, shade=shade(r2)),
            Cell(f"{100 * part:.0f} %", part, shade=shade(part)), Cell(f"{100 * last.chance:.2g} %", last.chance),
        ))  # fmt: skip
        plain.append({"method": row.label, "attacker": last.attacker, "r2": r2, "reidentified": part,
                      "chance": last.chance, "rows": last.rows, "among": last.among,
                      "seeds": len(measured)})  # fmt: skip
    if not cells:
        return None
    columns = ("method", "attacker", "R² of inputs", "re-identified", "by chance")
    note = (
        "R² is 1 where inputs are reconstructed exactly and 0 where their mean would be as good a guess. "
        "Re-identified: the part of shared rows that were picked out among training rows; by chance: by guessing. "
        "Methods that are not listed share no rows, which is not to say that they leak nothing."
    )
    return Sheet("leak", begun(EXPLAINED), columns, tuple(cells), tuple(plain), words=2, note=note)


def budgets(rows: Sequence[Labelled]) -> list[str]:
    """What noise bounds, a sentence a row."""
    found = []
    for row in rows:
        for detail in row.details:
            if detail.privacy:
                try:
                    told = told_privacy(detail.privacy).removeprefix("privacy: ")
                    found.append(f"{row.label}: {printable(told, 1000)}")
                except (KeyError, TypeError, ValueError, IndexError, AttributeError):
                    found.append(f"{row.label}: what its result says of epsilon cannot be read")
                break
    return found


def attacked(rows: Sequence[Labelled], most: int) -> Sheet | None:
    """What `fewfed attack` found, where its findings lie in the run folders; so many numbers of it on the page."""
    cells = []
    for row in rows:
        for run, detail in zip(row.group.runs, row.details, strict=True):
            for one in detail.findings:
                name = printable(one.get("attack", "")) + (
                    f" ({printable(one['variant'])})" if one.get("variant") else ""
                )
                threat = one.get("threat")
                who = printable(threat.get("who", "")) if isinstance(threat, dict) else ""
                where = f"{row.label}, seed {run.seed}"
                for measure in one["measures"]:
                    cells.append((
                        Cell(where), Cell(name), Cell(who), Cell(printable(measure.get("what", ""))),
                        Cell(_number(measure["value"]), known(measure["value"])),
                        Cell(f"{_number(measure.get('low'))} to {_number(measure.get('high'))}"),
                        Cell(_number(measure.get("chance")), known(measure.get("chance"))),
                        Cell(str(one["round"]), float(one["round"])),
                    ))  # fmt: skip
    if not cells:
        return None
    columns = ("run", "attack", "by", "what", "value", "95 % interval", "by chance", "round")
    plain = tuple({name: cell.text for name, cell in zip(columns, row, strict=True)} for row in cells)
    more = len(cells) - most
    note = f"{more} more are in the CSV file of this table." if more > 0 else ""
    return Sheet("attacks", "Attacks on what was sent, as 'fewfed attack' found", columns, tuple(cells[:most]), plain,
                 words=4, note=note)  # fmt: skip


def idle(rows: Sequence[Labelled]) -> list[str]:
    """Attacks that had nothing to work on."""
    return list(dict.fromkeys(f"{row.label}: {line}" for row in rows for detail in row.details for line in detail.idle))


def _number(value: Any) -> str:
    found = known(value)
    return "" if found is None else f"{found:.3g}"
