"""A .csv file: a header, a label column, and numbers in all other columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fewfed.data.examples import Dataset
from fewfed.data.limits import Limits
from fewfed.data.readers.inputs import as_inputs
from fewfed.data.readers.labels import Column
from fewfed.data.readers.opening import read_bytes, size_of
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.own import Part, own_dataset
from fewfed.data.readers.roles import roles
from fewfed.errors import DataError

ROW_BYTES, CELL_BYTES = 64, 64
"""What a row and a cell take in memory, about, beside the file itself."""
LONGEST_NUMBER = 1000
AT_ONCE = 1 << 16
SHOWN = 80


def read(path: Path, options: DataOptions, seed: int) -> Dataset:
    return own_dataset(path.stem, read_part(path, options), None, options, seed)


def read_folder(folder: Path, options: DataOptions, seed: int) -> Dataset:
    """`train.csv` and `test.csv` side by side."""
    parts = [read_part(folder / f"{part}.csv", options) for part in ("train", "test")]
    return own_dataset(folder.name, parts[0], parts[1], options, seed)


def files(path: Path, options: DataOptions) -> list[Path]:
    """What `read` reads."""
    return [path]


def files_in_folder(folder: Path, options: DataOptions) -> list[Path]:
    """What `read_folder` reads."""
    return [folder / "train.csv", folder / "test.csv"]


def read_part(path: Path, options: DataOptions) -> Part:
    stored = size_of(path, options.limits)
    header, columns = _columns(path, options.limits)
    chosen = roles(str(path), header, options)
    x = np.stack([_numbers(path, name, columns[name]) for name in chosen.inputs], axis=1)
    for name in (chosen.label, *(column for _, column in chosen.groups)):
        _refuse_empty_cells(path, name, columns[name])

    def column(name: str) -> Column:
        return Column(_at(path, name), columns[name], stored)

    groups = {group: column(name).as_groups(options.limits) for group, name in chosen.groups}
    return Part(as_inputs(path.stem, x), column(chosen.label).as_labels(options.limits), groups)


def _columns(path: Path, limits: Limits) -> tuple[list[str], dict[str, list[str]]]:
    rows = []
    held = 0
    try:
        text = read_bytes(path, limits).decode("utf-8-sig")
        for row in csv.reader(io.StringIO(text, newline="")):
            if row:
                rows.append(row)
                held += ROW_BYTES + CELL_BYTES * len(row)
                limits.check_total(f"{path} as cells of text", held)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read ({error}): expected comma-separated text in UTF-8") from error
    if not rows:
        raise DataError(f"{path} is empty: expected a header line and one line an example")
    header = [cell.strip() for cell in rows[0]]
    if len(rows) == 1:
        raise DataError(f"{path} has a header but no rows: expected one line an example")
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise DataError(f"{path}, row {number} has {len(row)} cells: expected {len(header)}, one for each column")
    cells = zip(*rows[1:], strict=True)
    return header, {name: [cell.strip() for cell in column] for name, column in zip(header, cells, strict=True)}


def _numbers(path: Path, name: str, cells: Sequence[str]) -> np.ndarray:
    try:
        if max(map(len, cells)) > LONGEST_NUMBER:
            raise ValueError
        # In pieces, because every cell takes the room of the longest.
        pieces = [cells[first : first + AT_ONCE] for first in range(0, len(cells), AT_ONCE)]
        return np.concatenate([np.array(piece, dtype=str).astype(np.float64) for piece in pieces])
    except ValueError:
        row = next(number for number, cell in enumerate(cells, start=1) if not _is_number(cell))
        found = f"'{cells[row - 1][:SHOWN]}'" if cells[row - 1] else "nothing"
        raise DataError(
            f"{_at(path, name)}, row {row} holds {found}: expected a number; remove the column or fill the cell"
        ) from None


def _at(path: Path, name: str) -> str:
    return f"{path}, column '{name[:SHOWN]}'"


def _is_number(cell: str) -> bool:
    if len(cell) > LONGEST_NUMBER:
        return False
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _refuse_empty_cells(path: Path, name: str, cells: Sequence[str]) -> None:
    if "" in cells:
        raise DataError(f"{_at(path, name)}, row {cells.index('') + 1} is empty: expected a value in every row")
