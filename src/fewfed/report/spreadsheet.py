"""Tables as CSV that a spreadsheet may open, whoever gave the names in them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_FORMULAS = ("=", "+", "-", "@", "\t", "\n", "＝", "＋", "－", "＠")
"""What makes a spreadsheet compute a cell: a class may be called `=HYPERLINK(...)`, and whoever opens the table would
run it."""


def as_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A head and a line a row; a column that a row lacks is empty there."""
    return lines_as_csv(columns, ([row.get(name) for name in columns] for row in rows))


def lines_as_csv(columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    """The same of cells in the order of the columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([harmless(name) for name in columns])
    writer.writerows([harmless(value) for value in line] for line in lines)
    return out.getvalue()


def harmless(value: Any) -> Any:
    """A text that would be computed, behind the sign that keeps spreadsheets from it; all else as it is."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")  # The writer leaves it bare, and readers end the line there.
    return f"'{text}" if text.startswith(_FORMULAS) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
