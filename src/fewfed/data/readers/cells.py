"""What stands in a cell of a table: nothing, a number, or text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

MISSING = frozenset(
    ("", "NA", "na", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NAN", "null", "Null", "NULL", "?", ".")
)
"""How people and programs write that a value is missing."""
LONGEST_NUMBER = 1000
AT_ONCE = 1 << 16
_TRUTH = {"true": "1", "false": "0"}
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?", re.ASCII)
_PLAIN_WHOLE = re.compile(r"0|-?[1-9]\d{0,17}", re.ASCII)
_PLAIN_NUMBER = re.compile(r"[+-]?(0|[1-9]\d*)(\.\d*)?([eE][+-]?\d+)?|[+-]?\.\d+([eE][+-]?\d+)?", re.ASCII)


def missing_in(cells: Sequence[str]) -> np.ndarray:
    """Which cells hold no value."""
    return np.fromiter((cell in MISSING for cell in cells), bool, len(cells))


def numbers_in(cells: Sequence[str], decimal_comma: bool = False) -> np.ndarray | None:
    """The cells as numbers, NaN where one is missing; None if any is something else.

    A column of nothing but true and false is 1 and 0. `decimal_comma`: 1,5 may be written for 1.5.
    """
    present = [cell for cell in cells if cell not in MISSING]
    if present and all(cell.lower() in _TRUTH for cell in present):
        return np.array([float(_TRUTH.get(cell.lower(), "nan")) for cell in cells])
    if decimal_comma and has_decimal_commas(present):
        cells = [cell.replace(",", ".") for cell in cells]
    if max(map(len, cells), default=0) > LONGEST_NUMBER:
        return None
    plain = ["nan" if cell in MISSING else cell for cell in cells]
    try:
        # In pieces, because every cell takes the room of the longest.
        pieces = [plain[first : first + AT_ONCE] for first in range(0, len(plain), AT_ONCE)]
        return np.concatenate([np.array(piece, dtype=str).astype(np.float64) for piece in pieces])
    except ValueError:
        return None


def has_decimal_commas(cells: Sequence[str]) -> bool:
    """Whether these are numbers of which some are written 1,5 and none 1.5."""
    found = False
    for cell in cells:
        if "," not in cell:
            if "." in cell or not is_number(cell):
                return False
        elif _DECIMAL_COMMA.fullmatch(cell):
            found = True
        else:
            return False
    return found


def is_number(cell: str) -> bool:
    return number_of(cell) is not None


def number_of(cell: str) -> float | None:
    """The number that a cell holds, perhaps NaN or infinity; None where it is text."""
    if len(cell) > LONGEST_NUMBER:
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def codes_in(cells: Sequence[str]) -> np.ndarray | None:
    """Names that are all plain numbers, as numbers; None where one is text, or written in a way that would be lost."""
    if all(_PLAIN_WHOLE.fullmatch(cell) for cell in cells):
        return np.array([int(cell) for cell in cells], np.int64)
    if not all(len(cell) < LONGEST_NUMBER and _PLAIN_NUMBER.fullmatch(cell) for cell in cells):
        return None
    numbers = np.array([float(cell) for cell in cells])
    exact = np.isfinite(numbers) & (np.abs(numbers) < 2.0**53)
    return numbers if bool(exact.all()) else None


def name_of(number: object) -> str:
    """A class or a site that is a number, as people write it: 3 and not 3.0."""
    if isinstance(number, (float, np.floating)) and np.isfinite(number) and number == np.floor(number):
        return str(int(number))
    return str(number)
