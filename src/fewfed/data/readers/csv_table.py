"""A .csv file: a header, then one line a row; separated by commas, semicolons, tabs or bars."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fewfed.data.limits import Limits
from fewfed.data.readers.opening import read_bytes, size_of
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.table import CellKind, TextCells
from fewfed.errors import DataError

ROW_BYTES, CELL_BYTES = 64, 64
"""What a row and a cell take in memory, about, beside the file itself."""
SEPARATORS = ",;\t|"
_BYTE_ORDER_MARKS = (b"\xff\xfe", b"\xfe\xff")
_HEADER_LETTERS = 1 << 20
"""How far the end of the header line is looked for."""


@dataclass(frozen=True)
class CsvTable:
    """The cells of a .csv file."""

    where: str
    stored: int
    names: tuple[str, ...]
    cells: Mapping[str, Sequence[str]]
    separator: str
    _made: dict[str, TextCells] = field(default_factory=dict, compare=False, repr=False)

    @property
    def rows(self) -> int:
        return len(next(iter(self.cells.values())))

    def kind(self, name: str) -> CellKind:  # noqa: ARG002
        return "text"

    def column(self, name: str) -> TextCells:
        if name not in self._made:
            # Semicolons separate cells where commas stand in numbers; with tabs nobody could tell what 1,234 is.
            self._made[name] = TextCells(self.cells[name], decimal_comma=self.separator == ";")
        return self._made[name]

    def lists(self, name: str) -> np.ndarray:
        raise AssertionError(f"column '{name}' of a .csv file holds text")

    def pictures(self, name: str) -> Sequence[bytes]:
        raise AssertionError(f"column '{name}' of a .csv file holds text")

    def class_names(self, name: str) -> tuple[str, ...]:  # noqa: ARG002
        return ()


def tables(path: Path, options: DataOptions) -> list[CsvTable]:
    """The only table of a file."""
    return [table(path, options)]


def tables_in_folder(folder: Path, options: DataOptions) -> list[CsvTable]:
    """`train.csv` and `test.csv` side by side."""
    return [table(path, options) for path in files_in_folder(folder, options)]


def files(path: Path, options: DataOptions) -> list[Path]:
    """What `tables` reads."""
    return [path]


def files_in_folder(folder: Path, options: DataOptions) -> list[Path]:
    """What `tables_in_folder` reads."""
    return [folder / "train.csv", folder / "test.csv"]


def table(path: Path, options: DataOptions) -> CsvTable:
    stored = size_of(path, options.limits)
    text = _text(path, read_bytes(path, options.limits))
    separator, start = _separator(text)
    rows = _rows(path, text[start:], separator, options.limits)
    if not rows:
        raise DataError(f"{path} is empty: expected a header line and one line an example")
    # What pandas calls a column without a name.
    header = [cell.strip() or f"Unnamed: {place}" for place, cell in enumerate(rows[0])]
    if len(rows) == 1:
        raise DataError(f"{path} has a header but no rows: expected one line an example")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise DataError(f"{path}, row {number} has {len(row)} cells: expected {len(header)}, one for each column")
    columns = zip(*rows[1:], strict=True)
    cells = {name: [cell.strip() for cell in column] for name, column in zip(header, columns, strict=True)}
    return CsvTable(str(path), stored, tuple(header), cells, separator)


def _text(path: Path, raw: bytes) -> str:
    try:
        if raw[:2] in _BYTE_ORDER_MARKS:
            return raw.decode("utf-16")
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path}, line {line} holds a byte that is no UTF-8 ({raw[error.start]:#04x}), as files in Latin-1 or "
            "Windows encodings do: save it as UTF-8"
        ) from error
    if "\0" in text:
        raise DataError(f"{path} holds NUL characters, which no text has: save it as comma-separated text in UTF-8")
    return text


def _separator(text: str) -> tuple[str, int]:
    """The separator, and where the header begins: behind a first line `sep=;`, as spreadsheets write it."""
    if text[:4].lower() == "sep=" and text[4:5] in tuple(SEPARATORS) and text[5:6] in ("\r", "\n"):
        return text[4], 7 if text[5:7] == "\r\n" else 6
    counted = dict.fromkeys(SEPARATORS, 0)
    quoted = False
    begun = False
    for letter in text[:_HEADER_LETTERS]:
        if letter == '"':
            quoted = not quoted
        elif letter in "\r\n" and not quoted and begun:
            break
        elif letter in counted and not quoted:
            counted[letter] += 1
        begun = begun or letter not in "\r\n"
    return max(SEPARATORS, key=lambda separator: counted[separator]), 0


def _rows(path: Path, text: str, separator: str, limits: Limits) -> list[list[str]]:
    """Rows in which anything stands."""
    rows = []
    held = 0
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
            if row and (len(row) == 1 or any(cell.strip() for cell in row)):
                rows.append(row)
                held += ROW_BYTES + CELL_BYTES * len(row)
                limits.check_total(f"{path} as cells of text", held)
    except csv.Error as error:
        raise DataError(f"{path} cannot be read ({error}): expected comma-separated text in UTF-8") from error
    return rows
