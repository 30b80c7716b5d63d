"""Columns of a table as inputs: numbers as they are, text as one number a category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fewfed.data.limits import Limits
from fewfed.data.raw_inputs import InputColumn
from fewfed.data.readers.cells import MISSING, has_decimal_commas, is_number, numbers_in
from fewfed.data.readers.table import SHOWN, Cells, Table, TextCells, at
from fewfed.errors import DataError

MOST_CATEGORIES = 100
FEW_CATEGORIES = 10
"""So many different texts are categories in any table, unless every row has another one."""
ROWS_A_CATEGORY = 4
FEWEST_ROWS = 5
"""From so many rows on, a text that is different in every row is a name."""

Unknown = Literal["refuse", "none"]
"""What a category that was not there in training is: an error, or none of those that were."""


@dataclass(frozen=True)
class Encoded:
    """A column as numbers, rows first: NaN where a number is missing, zeros where a category is."""

    values: np.ndarray
    unknown: int = 0
    """Cells with an unknown category."""


def input_column(table: Table, name: str, used: np.ndarray) -> InputColumn:
    """What a column is as an input, from the rows that are used."""
    cells = table.column(name)
    if not isinstance(cells, TextCells):
        return InputColumn(name)
    if numbers_in(cells.cells, cells.decimal_comma) is not None:
        return InputColumn(name)
    _refuse_slips(at(table, name), cells)
    rows = np.flatnonzero(used).tolist()
    texts = sorted({cells.cells[row] for row in rows if cells.cells[row] not in MISSING})
    _refuse_names(table, name, texts, len(rows))
    return InputColumn(name, tuple(texts))


def encoded(where: str, column: InputColumn, cells: Cells, unknown: Unknown) -> Encoded:
    """The cells of a column as the numbers an input has for it. `where` is for an error."""
    if column.categories:
        return _one_hot(where, column, cells, unknown)
    if isinstance(cells, TextCells):
        numbers = numbers_in(cells.cells, cells.decimal_comma)
        if numbers is None:
            raise _no_number(where, cells)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            numbers = np.where(cells.missing, np.nan, cells.values.astype(np.float64))
    return Encoded(numbers[:, None])


def joined(where: str, parts: Sequence[Encoded], limits: Limits) -> np.ndarray:
    """All columns side by side."""
    rows, width = len(parts[0].values), sum(part.values.shape[1] for part in parts)
    limits.check_total(f"{where} as {rows} rows of {width} numbers", 8 * rows * width)
    return np.concatenate([part.values for part in parts], axis=1)


def refuse_two_notations(table: Table, columns: Sequence[InputColumn]) -> None:
    """Raise where 1,5 stands in one column and 1.5 in another: one of them may well be a thousand."""
    texts = {column.name: cells for column in columns if isinstance(cells := table.column(column.name), TextCells)}
    plain = {name: [cell for cell in cells.cells if cell not in MISSING] for name, cells in texts.items()}
    commas = next((name for name in plain if texts[name].decimal_comma and has_decimal_commas(plain[name])), None)
    if commas is None:
        return
    for column in columns:
        if not column.categories and any("." in cell for cell in plain.get(column.name, ())):
            raise DataError(
                f"{table.where} writes decimals with a comma in column '{commas[:SHOWN]}' and with a point in column "
                f"'{column.name[:SHOWN]}': expected the same in all columns"
            )


def _one_hot(where: str, column: InputColumn, cells: Cells, unknown: Unknown) -> Encoded:
    texts = cells.cells if isinstance(cells, TextCells) else [str(value) for value in cells.values.tolist()]
    places = {category: place for place, category in enumerate(column.categories)}
    values = np.zeros((len(texts), len(places)))
    strange = 0
    for row, (text, is_missing) in enumerate(zip(texts, cells.missing.tolist(), strict=True)):
        place = places.get(text)
        if place is not None:
            values[row, place] = 1.0
        elif not is_missing:
            strange += 1
            if unknown == "refuse":
                raise DataError(
                    f"{where}, row {row + 1} holds '{text[:SHOWN]}', which no training row has: expected one of "
                    f"{_listed(column.categories)}"
                )
    return Encoded(values, strange)


def _refuse_slips(where: str, cells: TextCells) -> None:
    """A few texts among numbers are slips of the pen and no categories."""
    present = [cell for cell in cells.cells if cell not in MISSING]
    if 2 * sum(map(is_number, present)) >= len(present):
        raise _no_number(where, cells)


def _no_number(where: str, cells: TextCells) -> DataError:
    row = next(row for row, cell in enumerate(cells.cells) if cell not in MISSING and not is_number(cell))
    cell = cells.cells[row]
    advice = "correct the cell, or leave the column out with --ignore"
    if has_decimal_commas([one for one in cells.cells if one not in MISSING]):
        advice = "write decimals with a point, or separate cells by semicolons"
    return DataError(f"{where}, row {row + 1} holds '{cell[:SHOWN]}': expected a number as elsewhere; {advice}")


def _refuse_names(table: Table, name: str, texts: Sequence[str], rows: int) -> None:
    most = min(MOST_CATEGORIES, max(FEW_CATEGORIES, rows // ROWS_A_CATEGORY))
    if len(texts) > most or (len(texts) == rows and rows >= FEWEST_ROWS):
        numeric = sum(text[:1].isdigit() for text in texts) * 2 > len(texts)
        also = "; numbers are written plainly, as in 1234.5" if numeric else ""
        raise DataError(
            f"{at(table, name)} holds {len(texts)} different texts in {rows} rows ('{texts[0][:SHOWN]}', "
            f"'{texts[-1][:SHOWN]}'), too many for categories: leave out names, ids and dates with "
            f"--ignore '{name[:SHOWN]}'{also}"
        )
    if not texts:
        raise DataError(
            f"{at(table, name)} holds no value in any row that is used: leave it out with --ignore '{name}'"
        )


def _listed(categories: Sequence[str]) -> str:
    shown = [category[:SHOWN] for category in categories[:FEW_CATEGORIES]]
    return ", ".join(shown + ["..."] * (len(categories) > FEW_CATEGORIES))
