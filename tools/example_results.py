"""What a worked example came to on this machine, as the part of its README between two marks.

examples/lung/run.sh                             # run it first
python tools/example_results.py lung             # print the part
python tools/example_results.py lung --write     # put it into examples/lung/README.md
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
import textwrap
from pathlib import Path

from fewfed.report.page.contents import Task, contents
from fewfed.report.survey import survey

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- result -->", "<!-- end of result -->"
SHOWN = ("method", "best", "last", "last 10", "MB up", "leak")
"""Columns of the report's table that a README has room for."""
FEWEST = 5
"""Test rows of a site below which its accuracy says nothing."""
WIDTH = 100


def part(out: Path) -> str:
    """Tables and sentences of the report, means over sites, and what it took."""
    folders = comparisons(out / "compare")
    blocks = [BEGIN]
    for folder in folders:
        (task,) = contents(survey([folder])).tasks
        blocks += [f"With `{folder.name}`:"] if len(folders) > 1 else []
        blocks += _of_task(task)
    return "\n\n".join([*blocks, _wrapped(_cost(out)), END])


def comparisons(folder: Path) -> list[Path]:
    """The folder itself, or those in it where it holds several comparisons."""
    return [folder] if (folder / "table.csv").is_file() else sorted(path.parent for path in folder.glob("*/table.csv"))


def _of_task(task: Task) -> list[str]:
    table, _, caption = task.results.files()["results.md"].partition("\n\n")
    blocks = [_columns(table), _wrapped(caption.strip()), _list(task.sentences)]
    sites = _over_sites(task)
    return [*blocks, _wrapped(sites)] if sites else blocks


def _columns(table: str) -> str:
    """A Markdown table with the columns that are shown."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    kept = [place for place, name in enumerate(lines[0]) if name in SHOWN]
    return "\n".join("| " + " | ".join(line[place] for place in kept) + " |" for line in lines)


def _list(sentences: tuple[str, ...]) -> str:
    return "\n".join(textwrap.fill(line, WIDTH, initial_indent="- ", subsequent_indent="  ") for line in sentences)


def _over_sites(task: Task) -> str:
    """The mean over sites, each by the model it would use: its own where a method leaves every site with one."""
    if task.sites is None:
        return ""
    rows = list(csv.DictReader(io.StringIO(task.sites.files()["sites.csv"])))
    if min(int(row["test_rows"]) for row in rows) < FEWEST:
        return ""
    methods = [name for name in rows[0] if name not in ("site", "train_rows", "test_rows")]
    means = []
    for method in methods:
        values = [100 * float(row[method]) for row in rows if row[method]]
        means.append(f"{method} {sum(values) / len(values):.1f} (lowest site {min(values):.0f})")
    return (
        "At the sites, each with the model it would use there (`local` and `fedbn`: its own), last round, mean over "
        f"{len(rows)} sites: {'; '.join(means)}."
    )


def _cost(out: Path) -> str:
    run = next(out.glob("compare/**/environment.json"))
    machine, config = (json.loads((run.parent / name).read_text()) for name in ("environment.json", "config.json"))
    seconds = _processor_seconds((out / "times").read_text())
    seeds = len({path.name.rpartition("seed")[2] for path in out.glob("compare/**/*-seed*")})
    counted = "1 seed" if seeds == 1 else f"{seeds} seeds"
    return (
        f"{counted}, {config['experiment']['rounds']} rounds. All of it took {seconds:.0f} seconds of processor time "
        f"on a machine with {machine['cores']} cores ({_processor()}) that did other work too: about "
        f"{max(1, round(seconds / 120))} min on two that are idle. Python {machine['python']}, torch "
        f"{machine['torch']}, fewfed {machine['fewfed']}."
    )


def _processor_seconds(times: str) -> float:
    """Of every pass: the shell prints its own time in one line and that of its commands in the next."""
    found = [60 * int(minutes) + float(rest) for minutes, rest in re.findall(r"(\d+)m([\d.]+)s", times)]
    return sum(found)


def _processor() -> str:
    try:
        names = re.findall(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        names = []
    return names[0] if names else "of unknown make"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH)


def main() -> None:
    name = sys.argv[1]
    text = part(ROOT / "runs" / "examples" / name)
    if "--write" not in sys.argv:
        print(text)
        return
    page = ROOT / "examples" / name / "README.md"
    content = page.read_text()
    start, stop = content.index(BEGIN), content.index(END) + len(END)
    page.write_text(content[:start] + text + content[stop:])


if __name__ == "__main__":
    main()
