"""Tables, wherever they were stored, as inputs, labels and groups row by row."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fewfed.data.raw_inputs import InputColumn, RawInputs
from fewfed.data.readers.cells import MISSING, name_of
from fewfed.data.readers.inputs import as_inputs
from fewfed.data.readers.labels import Column
from fewfed.data.readers.missing import Masks, refuse_lost_sites, rows_used
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.own_rows import Part, Rows
from fewfed.data.readers.pictures import decode, survey
from fewfed.data.readers.roles import Roles, counts_rows, refuse_twice, roles
from fewfed.data.readers.table import SHOWN, Table, TextCells, at
from fewfed.data.readers.table_inputs import encoded, input_column, joined, refuse_two_notations
from fewfed.data.reading import LeftOut, MissingCells, Reading
from fewfed.errors import DataError

TEST_MARKS = {
    **dict.fromkeys(("test", "testing", "true", "t", "yes", "y", "1", "1.0"), True),
    **dict.fromkeys(("train", "training", "false", "f", "no", "n", "0", "0.0"), False),
}
"""What may stand in the column that marks test rows; nothing is as good as 'train'."""


@dataclass(frozen=True)
class _Inputs:
    """Inputs of each table, what they are made from, and what was found on the way."""

    parts: tuple[Tensor, ...]
    raw: RawInputs
    beside: tuple[LeftOut, ...] = ()
    unknown: tuple[MissingCells, ...] = ()


def rows_of(name: str, tables: Sequence[Table], options: DataOptions) -> Rows:
    """Rows of the training table, and of the test table where there is one: it has the same columns, in any order."""
    for table in tables:
        if table.rows == 0:
            raise DataError(f"{table.where} has no rows: expected at least one")
    chosen = roles(tables[0], options)
    all_roles = [chosen, *(_same_roles(table, chosen) for table in tables[1:])]
    pictures = _picture_column(tables, chosen)
    masks = [
        _masks(table, role, () if pictures else role.inputs) for table, role in zip(tables, all_roles, strict=True)
    ]
    used = [rows_used(mask, table.rows, options.missing) for mask, table in zip(masks, tables, strict=True)]
    if pictures:
        inputs = _pictures(tables, chosen, pictures, used, options)
    elif any(tables[0].kind(column) == "lists" for column in chosen.inputs):
        inputs = _lists(name, tables, chosen, used)
    else:
        inputs = _columns(tables, chosen, used, options)
    parts = [
        _part(table, role, x, rows, options)
        for table, role, x, rows in zip(tables, all_roles, inputs.parts, used, strict=True)
    ]
    if chosen.groups:
        for mask, rows, table in zip(masks, used, tables, strict=True):
            column = chosen.groups[0][1]
            if column in mask.needed:
                refuse_lost_sites(mask, rows, column, _names(table, column), options.missing)
    left_out = [*chosen.left_out, *inputs.beside, *(extra for role in all_roles[1:] for extra in role.left_out)]
    reading = Reading(
        data=name,
        label=chosen.label,
        site=chosen.groups[0][1] if chosen.groups else "",
        columns=inputs.raw.columns,
        counting=() if pictures else _counting(tables[0], inputs.raw.columns),
        left_out=tuple(left_out),
        missing=_summed([cells for mask in masks for cells in mask.counted()]),
        filled=options.missing == "mean",
        dropped=sum(int((~rows).sum()) for rows in used),
        unknown=inputs.unknown,
        separator=tables[0].separator,
    )
    return Rows(parts, inputs.raw, reading, tables[0].class_names(chosen.label))


def _same_roles(table: Table, chosen: Roles) -> Roles:
    """The roles of a test table are those of the training table; what else it has is left out."""
    refuse_twice(table.where, table.names)
    for column in (chosen.label, *chosen.inputs):
        if column not in table.names:
            raise DataError(
                f"{table.where} has no column '{column[:SHOWN]}', which the training rows have: expected the same "
                "columns"
            )
    groups = tuple((name, column) for name, column in chosen.groups if column in table.names)
    known = {chosen.label, chosen.test, *chosen.inputs, *(column for _, column in chosen.groups)}
    known |= {left.name for left in chosen.left_out}
    extra = tuple(LeftOut(column, "not in training") for column in table.names if column not in known)
    return dataclasses.replace(chosen, groups=groups, test="", left_out=extra)


def _picture_column(tables: Sequence[Table], chosen: Roles) -> str:
    found = (column for column in chosen.inputs if all(table.kind(column) == "pictures" for table in tables))
    return next(found, "")


def _masks(table: Table, role: Roles, inputs: Sequence[str]) -> Masks:
    scalar = [column for column in inputs if table.kind(column) in ("text", "numbers")]
    needed = {column: table.column(column).missing for column in role.needed if column in table.names}
    return Masks(table.where, needed, {column: table.column(column).missing for column in scalar})


def _columns(tables: Sequence[Table], chosen: Roles, used: Sequence[np.ndarray], options: DataOptions) -> _Inputs:
    """Scalar columns: numbers, and categories as the training table has them."""
    columns = tuple(input_column(tables[0], column, used[0]) for column in chosen.inputs)
    made = []
    strange: dict[str, int] = {}
    for table in tables:
        refuse_two_notations(table, columns)
        parts = [encoded(at(table, column.name), column, table.column(column.name), "none") for column in columns]
        made.append(joined(table.where, parts, options.limits))
        if table is not tables[0]:
            strange |= {column.name: part.unknown for column, part in zip(columns, parts, strict=True) if part.unknown}
    inputs = tuple(as_inputs(table.where, x[rows]) for table, x, rows in zip(tables, made, used, strict=True))
    return _Inputs(inputs, RawInputs("table", columns), unknown=tuple(MissingCells(*item) for item in strange.items()))


def _lists(name: str, tables: Sequence[Table], chosen: Roles, used: Sequence[np.ndarray]) -> _Inputs:
    """Lists of numbers, and numbers beside them."""
    made = []
    for table, rows in zip(tables, used, strict=True):
        columns = [table.lists(column) for column in chosen.inputs]
        flat = [column.reshape(len(column), -1) for column in columns]
        array = columns[0] if len(columns) == 1 else np.concatenate(flat, axis=1)
        made.append(as_inputs(name, array[rows]))
    return _Inputs(tuple(made), RawInputs("array", tuple(map(InputColumn, chosen.inputs))))


def _pictures(
    tables: Sequence[Table], chosen: Roles, column: str, used: Sequence[np.ndarray], options: DataOptions
) -> _Inputs:
    """Where one column holds pictures it is the input and other columns are left out, because picture sets carry file
    names and further labels beside it."""
    pictures = [
        [picture for picture, kept in zip(table.pictures(column), rows, strict=True) if kept]
        for table, rows in zip(tables, used, strict=True)
    ]
    shape = survey([picture for part in pictures for picture in part], options)
    beside = tuple(LeftOut(other, "beside pictures") for other in chosen.inputs if other != column)
    made = tuple(decode(part, shape, options.limits) for part in pictures)
    return _Inputs(made, RawInputs("images", (InputColumn(column),)), beside)


def _part(table: Table, role: Roles, x: Tensor, used: np.ndarray, options: DataOptions) -> Part:
    groups = {}
    for number, (group, column) in enumerate(role.groups):
        if number == 0 or not table.column(column).missing.any():
            groups[group] = _values(table, column, used, options, as_labels=False)
    labels = _values(table, role.label, used, options, as_labels=True)
    marks = _test_marks(table, role.test)[used] if role.test else None
    return Part(x, labels, groups, marks, np.flatnonzero(used))


def _values(table: Table, column: str, used: np.ndarray, options: DataOptions, *, as_labels: bool) -> np.ndarray:
    """Labels or names of groups of the rows used, as they are written."""
    cells = table.column(column)
    if not isinstance(cells, TextCells):
        numbers: np.ndarray = cells.values[used]
        return numbers
    kept = [cells.cells[row] for row in np.flatnonzero(used).tolist()]
    written = Column(at(table, column), kept, table.stored)
    return written.as_labels(options.limits) if as_labels else written.as_groups(options.limits)


def _names(table: Table, column: str) -> np.ndarray:
    """What a column of sites says, as text in objects: no cell takes the room of the longest."""
    cells = table.column(column)
    texts = cells.cells if isinstance(cells, TextCells) else [name_of(value) for value in cells.values]
    made = np.empty(len(texts), object)
    made[:] = texts
    return made


def _test_marks(table: Table, column: str) -> np.ndarray:
    cells = table.column(column)
    texts = cells.cells if isinstance(cells, TextCells) else [str(value) for value in cells.values.tolist()]
    marks = [False if text in MISSING else TEST_MARKS.get(text.lower()) for text in texts]
    if None in marks:
        row = marks.index(None)
        raise DataError(
            f"{at(table, column)}, row {row + 1} holds '{texts[row][:SHOWN]}': expected 'test' or 'train', or true or "
            "false for whether a row is for testing"
        )
    return np.array(marks, bool)


def _counting(table: Table, columns: Sequence[InputColumn]) -> tuple[str, ...]:
    scalar = [column.name for column in columns if table.kind(column.name) in ("text", "numbers")]
    return tuple(name for name in scalar if counts_rows(table.column(name)))


def _summed(found: Sequence[MissingCells]) -> tuple[MissingCells, ...]:
    totals: dict[str, int] = {}
    for cells in found:
        totals[cells.column] = totals.get(cells.column, 0) + cells.cells
    return tuple(MissingCells(*item) for item in totals.items())
