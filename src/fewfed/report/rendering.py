"""Tables as text, for `print`, and as HTML, for notebooks."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

_WIDTH = 120
_LARGE = 1e6
"""From here on nobody reads digits any more."""


def as_text(table: Table | None, lines: Iterable[str]) -> str:
    """A table and lines below it, without colours and as wide as a page."""
    from rich.console import Console

    written = io.StringIO()
    console = Console(file=written, width=_WIDTH, highlight=False, color_system=None)
    if table is not None:
        console.print(table)
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    return "\n".join(line.rstrip() for line in written.getvalue().rstrip().splitlines())


def as_html(rows: Sequence[Mapping[str, Any]], title: str, lines: Iterable[str]) -> str:
    """Rows of plain values as a table, and lines below it."""
    below = [f"<p>{html.escape(line)}</p>" for line in lines]
    if not rows:
        return "\n".join(below)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = ["".join(f"<td>{html.escape(_cell(row.get(name)))}</td>" for name in columns) for row in rows]
    caption = f"<caption>{html.escape(title)}</caption>"
    return "\n".join(
        ["<table>", caption, f"<tr>{head}</tr>", *(f"<tr>{cells}</tr>" for cells in body), "</table>", *below]
    )


def printable(value: Any, most: int = _WIDTH) -> str:
    """A text of unknown origin, without what a terminal would take for a command, and not too long."""
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(value))
    return text if len(text) <= most else f"{text[:most]} ..."


def fixed(value: float, digits: int) -> str:
    """A number with so many digits behind its point; a very large one, as the loss of a run that diverged, as a power
    of ten."""
    return f"{value:.{digits}f}" if abs(value) < _LARGE else f"{value:.3g}"


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
