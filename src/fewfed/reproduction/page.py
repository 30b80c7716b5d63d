"""The page of all tables: what the papers print and what the kept records say, cells that were not run included."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from fewfed.report.table import Spread
from fewfed.reproduction.comparison import HEADINGS, LEAK, Row, accuracies_of, compared, curve_checks
from fewfed.reproduction.coordinates import Coordinates
from fewfed.reproduction.kept import Kept, Record
from fewfed.reproduction.library import Library
from fewfed.reproduction.outcome import Outcome
from fewfed.reproduction.study import Planned, Study

_HEAD = """# Results

Every table and figure that has a file in `reproduce/`, beside what its paper prints. This page is
made from the records in `reproduce/results/`, one a finished cell, by
`fewfed reproduce --page docs/results.md`; nothing in it is typed. More cells:
`fewfed reproduce NAME --minutes 30` runs the next ones and keeps them.

Accuracies in percent, mean ± sample standard deviation over seeds. *best* is the best evaluation of
a run on the test part, which is what most papers print and which flatters; *last* the last one;
*last 10* the mean of the last ten; *best valid.*, where a study keeps rows for validation, the one
of the round that is best on those rows. The verdict compares the column the study names (*best*
unless said) with the paper's: it *agrees* where they differ by at most two deviations, ours and the
paper's together, and is *higher* or *lower* else; one seed gives no verdict. *leak*, where records
have it: R2 of shared rows as a simple attacker reconstructs them, and the part re-identified.
"""


def page(library: Library, kept: Kept) -> str:
    """All studies as one Markdown page: those with records first."""
    studies = [library.study(name) for name in library.names()]
    fitting = {study.name: kept.fitting(study) for study in studies}
    run = [study for study in studies if fitting[study.name]]
    idle = [study for study in studies if not fitting[study.name]]
    parts = [_HEAD, _contents(studies, fitting)]
    parts += [_section(study, fitting[study.name]) for study in run]
    if idle:
        listed = "\n".join(_wrapped(f"- {study.name}: {study.what}") for study in idle)
        parts.append(f"## Not run yet\n\n{listed}\n")
    return "\n".join(parts)


def _contents(studies: Sequence[Study], fitting: dict[str, dict[str, Record]]) -> str:
    lines = ["| table or figure | cells | run |", "|---|---|---|"]
    for study in studies:
        name = f"[{study.name}](#{study.name})" if fitting[study.name] else study.name
        lines.append(f"| {name} | {len(study.runs)} | {len(fitting[study.name])} |")
    return "\n".join(lines) + "\n"


def _section(study: Study, records: dict[str, Record]) -> str:
    finished = [(run, records[run.name].outcome) for run in study.runs if run.name in records]
    rows = {tuple(row.at.items()): row for row in compared(study, finished)}
    settings = dict.fromkeys(run.setting for run in study.runs)
    compare = study.published.compare if study.published else "best"
    shown = accuracies_of(rows.values())
    leaks = any(row.leak for row in rows.values())
    head = [
        *study.axes,
        "seeds",
        *(HEADINGS[name] for name in shown),
        *study.terms,
        "published",
        "difference",
        "verdict",
        *([LEAK] if leaks else []),
    ]
    lines = [
        f"## {study.name}",
        "",
        _wrapped(f"{_sentence(study.what)} {study.paper}."),
        *(["", _wrapped(_sentence(study.note))] if study.note else []),
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(_line(study, dict(setting), rows.get(setting), compare, shown, leaks=leaks) for setting in settings),
        "",
        *_curve(study, finished),
        *_footnotes(study, finished, records),
    ]
    return "\n".join(lines)


def _line(
    study: Study, at: Coordinates, row: Row | None, compare: str, shown: Sequence[str], *, leaks: bool = False
) -> str:
    axes = [str(at.get(axis, "")) for axis in study.axes]
    printed = study.published.value_of(at) if study.published else None
    published = (
        "" if printed is None else f"{printed.mean:.2f}" + ("" if printed.sd is None else f" ± {printed.sd:.2f}")
    )
    if row is None:
        cells = ["", "not run", *("" for _ in shown[1:]), *("" for _ in study.terms), published, "", ""]
    else:
        cells = [
            str(row.seeds),
            *(_spread(getattr(row, name)) for name in shown),
            *(f"{row.terms[term]:.3f}" if term in row.terms else "" for term in study.terms),
            published,
            "" if row.difference is None else f"{row.difference:+.1f}",
            row.verdict(compare),
        ]
    cells += [row.leak_cell if row else ""] if leaks else []
    return f"| {' | '.join([*axes, *cells])} |"


def _curve(study: Study, finished: Sequence[tuple[Planned, Outcome]]) -> list[str]:
    checks = curve_checks(study, finished)
    if not checks:
        return []
    verdicts = {True: "inside", False: "outside", None: "run too short"}
    lines = ["| point of the published curve | published | ours | band |", "|---|---|---|---|"]
    for check in checks:
        measured = "" if check.measured is None else f"{check.measured:.1f}"
        point = check.point
        lines.append(f"| {point.label} | {point.value:.1f} ± {point.band:g} | {measured} | {verdicts[check.inside]} |")
    return [*lines, ""]


def _footnotes(study: Study, finished: Sequence[tuple[Planned, Outcome]], records: dict[str, Record]) -> list[str]:
    """What is true of all numbers above: rounds, the metric, data, hardware, commits."""
    used = [records[run.name] for run, _ in finished]
    rounds = sorted({record.outcome.rounds for record in used})
    metrics = sorted({record.outcome.metric for record in used})
    notes = sorted({record.outcome.note for record in used if record.outcome.note})
    made = sorted({", ".join(record.made.get(name, "?") for name in ("hardware", "torch")) for record in used})
    commits = sorted({record.made.get("commit", "?") for record in used})
    seconds = sorted(record.outcome.seconds for record in used)
    failed = sum(record.outcome.failed for record in used)
    lines = [
        f"- {len(used)} of {len(study.runs)} cells; rounds: {', '.join(map(str, rounds))}",
        f"- metric: {', '.join(metrics)}",
        *(f"- data: {note}" for note in notes),
        f"- computed on: {'; '.join(made)}; {seconds[0]:.0f} to {seconds[-1]:.0f} s a cell; "
        f"commits {', '.join(commits)}",
        *([f"- turns of clients that were left out: {failed}"] if failed else []),
    ]
    return [*map(_wrapped, lines), ""]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "."


def _wrapped(text: str) -> str:
    indent = "  " if text.startswith("- ") else ""
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return ""
    mean = f"{100 * spread.mean:.1f}"
    return mean if spread.deviation is None else f"{mean} ± {100 * spread.deviation:.1f}"
