"""The report on the disk: the page, and beside it its tables and figures as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fewfed.engine import storage
from fewfed.errors import RunError
from fewfed.report.page.contents import Contents, contents
from fewfed.report.page.figures import standing_alone
from fewfed.report.page.render import render
from fewfed.report.survey import survey

PAGE = "report.html"


@dataclass(frozen=True)
class Written:
    """Where a report lies."""

    page: Path
    tables: Path
    """The folder of tables and figures."""
    files: tuple[str, ...]
    """What is in it."""
    contents: Contents

    def __str__(self) -> str:
        return str(self.page)


def write_report(
    folders: Sequence[Path], page: Path | None = None, tables: Path | None = None, baseline: str = ""
) -> Written:
    """Write the report of all runs in some folders and below them.

    Without a `page`, it is report.html in the folder, or here where there are several; without `tables`, they go into a
    folder beside the page that is called like it, or like its file where runs lie in that folder.
    """
    runs = survey(folders)
    found = contents(runs, baseline=baseline)
    page = page or default_page(folders)
    if page.is_dir():
        raise RunError(f"'{page}' is a folder: expected the name of a file for the page, as in {page / PAGE}")
    tables = tables or _beside(page, [run.folder for run in runs])
    # The page last: where it is, its tables are too.
    made = files_of(found)
    _make(tables)
    _make(page.parent)
    for name, text in made.items():
        storage.write(tables / name, text.encode(errors="replace"))
    storage.write(page, render(found).encode(errors="replace"))
    return Written(page, tables, tuple(made), found)


def _beside(page: Path, runs: Sequence[Path]) -> Path:
    """The folder that is called like the page, unless that is the page itself, or holds runs: a report on runs/digits
    may well be called runs/digits.html."""
    named = page.with_suffix("")
    is_taken = named == page or any(run.resolve().is_relative_to(named.resolve()) for run in runs)
    return page.with_name(f"{page.name}-files") if is_taken else named


def default_page(folders: Sequence[Path]) -> Path:
    return folders[0] / PAGE if len(folders) == 1 else Path(PAGE)


def files_of(found: Contents) -> Mapping[str, str]:
    """Tables as Markdown, LaTeX and CSV, figures as SVG, by name."""
    made: dict[str, str] = {}
    for task in found.tasks:
        for sheet in task.sheets:
            made |= {f"{task.name}{name}": text for name, text in sheet.files().items()}
        made |= {f"{figure.name}.svg": standing_alone(figure.svg) for figure in task.figures}
    return {**made, **found.runs.files(), **(found.machines.files() if found.machines else {})}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot create '{folder}': {error.strerror or error}; choose another place") from error
