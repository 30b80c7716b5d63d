"""A table of the page, and the same as Markdown, LaTeX and CSV."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewfed.report.spreadsheet import as_csv

_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "−": r"$-$",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "[": "{[}",  # After the end of a line, this and a star would be read as what belongs to that.
        "*": "{*}",
    }
)
_MARKDOWN = str.maketrans({letter: f"\\{letter}" for letter in "\\|*_`[]<>#~$"})
_ENTITY = re.compile(r"&(?=#?\w+;)")
_LONG = 50
"""Letters in a cell from which on a column of words is broken into lines on paper."""
_WIDE = 0.75
"""What all such columns have of the width of a line."""


@dataclass(frozen=True)
class Cell:
    """One cell as a reader sees it."""

    text: str
    value: float | None = None
    """What rows are sorted by; None for words."""
    strong: bool = False
    """The best of its kind."""
    shade: int | None = None
    """From 0, the lightest, to 9, in a table that is also a picture."""


@dataclass(frozen=True)
class Sheet:
    """A table."""

    name: str
    """Of its files."""
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    plain: tuple[Mapping[str, Any], ...] = ()
    """The same for programs: full numbers, a mean and a deviation in columns of their own. Without it, the texts."""
    words: int = 1
    """How many of the first columns hold words; all others numbers."""
    note: str = ""

    @property
    def said(self) -> str:
        """All that stands below it: without the note nobody knows what ± is."""
        return f"{self.caption}. {self.note}".rstrip()

    def markdown(self) -> str:
        head = "| " + " | ".join(_marked(name) for name in self.columns) + " |"
        rule = "|" + "|".join("---" if place < self.words else "--:" for place in range(len(self.columns))) + "|"
        body = ["| " + " | ".join(_marked(cell.text, cell.strong) for cell in row) + " |" for row in self.rows]
        return "\n".join([head, rule, *body, "", _marked(self.said), ""])

    def latex(self) -> str:
        """For `booktabs`."""
        shape = "".join(self._shapes())
        body = [" & ".join(_set(cell.text, cell.strong) for cell in row) + r" \\" for row in self.rows]
        return "\n".join(
            [
                r"% \usepackage{booktabs}",
                r"\begin{table}",
                r"\centering",
                rf"\begin{{tabular}}{{{shape}}}",
                r"\toprule",
                " & ".join(_set(name) for name in self.columns) + r" \\",
                r"\midrule",
                *body,
                r"\bottomrule",
                r"\end{tabular}",
                rf"\caption{{{_set(self.said)}}}",
                r"\end{table}",
                "",
            ]
        )

    def _shapes(self) -> list[str]:
        """Of each column: as wide as its longest cell, unless that is a sentence."""
        long = {place for place in range(self.words) if any(len(row[place].text) > _LONG for row in self.rows)}
        broken = rf"p{{{_WIDE / max(1, len(long)):.2f}\linewidth}}"
        usual = ["l"] * self.words + ["r"] * (len(self.columns) - self.words)
        return [broken if place in long else shape for place, shape in enumerate(usual)]

    def csv(self) -> str:
        rows: Sequence[Mapping[str, Any]] = self.plain or [
            {name: cell.text for name, cell in zip(self.columns, row, strict=True)} for row in self.rows
        ]
        return as_csv(list(dict.fromkeys(name for row in rows for name in row)) or self.columns, rows)

    def files(self) -> dict[str, str]:
        """By name."""
        return {f"{self.name}.md": self.markdown(), f"{self.name}.tex": self.latex(), f"{self.name}.csv": self.csv()}


def with_names(fixed: Mapping[str, Any], named: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Columns of their own names beside columns that are named by data: a class may be called "method", too."""
    made = dict(fixed)
    for name, value in named.items():
        while name in made:
            name = f"{kind} {name}"
        made[name] = value
    return made


def words(*texts: str) -> tuple[Cell, ...]:
    return tuple(Cell(text) for text in texts)


def shade(share: float | None) -> int | None:
    """How dark a cell is for a number between 0 and 1."""
    return None if share is None else min(9, max(0, int(10 * share)))


def begun(text: str) -> str:
    """A text as a sentence begins: names such as AUC stay as they are."""
    return text[:1].upper() + text[1:]


def _marked(text: str, strong: bool = False) -> str:
    plain = _ENTITY.sub(r"\&", " ".join(text.split()).translate(_MARKDOWN))
    return f"**{plain}**" if strong and plain else plain


def _set(text: str, strong: bool = False) -> str:
    plain = " ".join(text.split()).translate(_LATEX)
    return rf"\textbf{{{plain}}}" if strong and plain else plain
