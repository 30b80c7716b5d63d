"""Text for Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; bars inside cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(str(text).split()))


def escaped(text: str) -> str:
    """Text of a docstring as Markdown: what would be read as HTML or as a link is not."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else _plain(piece) for piece in pieces)


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("[", r"\[").replace("_", r"\_")
