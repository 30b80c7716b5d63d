"""Columns of an Arrow table as arrays and pictures."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from fewfed.data.limits import Limits
from fewfed.data.readers.extras import need
from fewfed.data.readers.inputs import as_inputs
from fewfed.data.readers.labels import Column
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.own import Part
from fewfed.data.readers.pictures import decode, survey
from fewfed.data.readers.roles import Roles, roles
from fewfed.errors import DataError, in_one_line

SHOWN = 80
"""Letters of a column's name that an error repeats."""


@dataclass(frozen=True)
class ArrowTable:
    """A table, what to call it in an error, and the bytes it is stored in."""

    table: Any
    where: str
    stored: int

    def at(self, column: str) -> str:
        """One of its columns, in an error."""
        return f"{self.where}, column '{column[:SHOWN]}'"


def parts_of(name: str, tables: list[ArrowTable], options: DataOptions) -> tuple[list[Part], tuple[str, ...]]:
    """Rows of each table, and the class names where the table's metadata gives them.

    Where one column holds pictures it is the input and other columns are left out, because picture sets carry file
    names and further labels beside it.
    """
    arrow = need("pyarrow", "tables", "reading Arrow tables")
    try:
        return _parts_of(name, tables, options)
    except (arrow.ArrowException, UnicodeError) as error:
        raise DataError(
            f"{tables[0].where} cannot be used ({in_one_line(error)}): expected columns of one plain type"
        ) from error


def _parts_of(name: str, tables: list[ArrowTable], options: DataOptions) -> tuple[list[Part], tuple[str, ...]]:
    chosen = [roles(item.where, item.table.column_names, options) for item in tables]
    for item in tables:
        if item.table.num_rows == 0:
            raise DataError(f"{item.where} has no rows: expected at least one")
    picture_columns = [_picture_column(item, role) for item, role in zip(tables, chosen, strict=True)]
    if all(picture_columns):
        pictures = [_pictures(item, column) for item, column in zip(tables, picture_columns, strict=True)]
        shape = survey([picture for rows in pictures for picture in rows], options)
        inputs = [decode(rows, shape, options.limits) for rows in pictures]
    else:
        inputs = [as_inputs(name, _numeric_inputs(item, role)) for item, role in zip(tables, chosen, strict=True)]
    parts = [
        Part(
            x,
            _labels(item, role.label, options.limits),
            {group: _groups(item, column, options.limits) for group, column in role.groups},
        )
        for item, role, x in zip(tables, chosen, inputs, strict=True)
    ]
    return parts, _class_names(tables[0], chosen[0].label)


def _picture_column(item: ArrowTable, role: Roles) -> str:
    pa = need("pyarrow", "tables", "reading Arrow tables")
    for column in role.inputs:
        kind = item.table.schema.field(column).type
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return column
    return ""


def _pictures(item: ArrowTable, column: str) -> list[bytes]:
    pa = need("pyarrow", "tables", "reading Arrow tables")
    cells: list[bytes | None] = []
    for chunk in item.table.column(column).chunks:
        # Of a structure only the one field: the others may hold anything.
        is_struct = pa.types.is_struct(chunk.type)
        cells += (chunk.flatten()[chunk.type.get_field_index("bytes")] if is_struct else chunk).to_pylist()
    found = []
    for row, encoded in enumerate(cells):
        if not encoded:
            raise DataError(f"{item.at(column)}, row {row} holds no image bytes: expected images stored in the table")
        found.append(encoded)
    return found


def _numeric_inputs(item: ArrowTable, role: Roles) -> np.ndarray:
    columns = [_numbers(item, column) for column in role.inputs]
    if len(columns) == 1:
        return columns[0]
    return np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)


def _numbers(item: ArrowTable, column: str) -> np.ndarray:
    """A column of numbers, or of equally long (nested) lists of them, as one array."""
    pa = need("pyarrow", "tables", "reading Arrow tables")
    values = _plain(item.table.column(column))
    if _is_dictionary(values) and _is_number(pa, values.dictionary.type):
        values = values.dictionary_decode()
    shape = [len(values)]
    while _is_list(pa, values.type):
        _refuse_missing(item, column, values)
        lengths = np.unique([len(entry) for entry in values])
        if len(lengths) > 1:
            raise DataError(
                f"{item.at(column)} holds lists of {lengths[0]} to {lengths[-1]} entries: "
                "expected one length; pad or cut them"
            )
        shape.append(int(lengths[0]) if len(lengths) else 0)
        values = values.flatten()
    _refuse_missing(item, column, values)
    if not _is_number(pa, values.type):
        raise DataError(f"{item.at(column)} is of type {values.type}: expected numbers; remove the column")
    array: np.ndarray = values.to_numpy(zero_copy_only=False)
    return array.reshape(shape)


def _labels(item: ArrowTable, column: str, limits: Limits) -> np.ndarray:
    """A column of labels, one a row."""
    text = _text(item, column)
    return _numbers(item, column) if text is None else text.as_labels(limits)


def _groups(item: ArrowTable, column: str, limits: Limits) -> np.ndarray:
    """A column of names, one a row."""
    text = _text(item, column)
    return _numbers(item, column) if text is None else text.as_groups(limits)


def _text(item: ArrowTable, column: str) -> Column | None:
    """The cells of a column of text; None where it holds something else."""
    values = _plain(item.table.column(column))
    where = item.at(column)
    if not _is_dictionary(values):
        _refuse_missing(item, column, values)
        return Column(where, values.to_pylist(), item.stored) if _is_text(values.type) else None
    _refuse_missing(item, column, values.indices)
    if not _is_text(values.dictionary.type):
        return None
    # A row refers to its text: written out, a long one on a million rows would fill the memory.
    known = values.dictionary.to_pylist()
    cells = [known[index] for index in values.indices.to_pylist()]
    if None in cells:
        raise DataError(f"{where}, row {cells.index(None)} has no value: expected one in every row")
    return Column(where, cells, item.stored)


def _is_dictionary(values: Any) -> bool:
    return bool(need("pyarrow", "tables", "reading Arrow tables").types.is_dictionary(values.type))


def _is_text(kind: Any) -> bool:
    types = need("pyarrow", "tables", "reading Arrow tables").types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _plain(column: Any) -> Any:
    """One array without chunks and without an extension type around its storage."""
    pa = need("pyarrow", "tables", "reading Arrow tables")
    combined = column.combine_chunks()
    values = pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined
    return values.storage if isinstance(values, pa.ExtensionArray) else values


def _is_number(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_list(pa: Any, kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _refuse_missing(item: ArrowTable, column: str, values: Any) -> None:
    if values.null_count:
        raise DataError(f"{item.at(column)} has {values.null_count} missing values: expected a value in every row")


def _class_names(item: ArrowTable, label: str) -> tuple[str, ...]:
    metadata = item.table.schema.metadata or {}
    try:
        described = json.loads(metadata.get(b"huggingface", b"{}"))
        names = described["info"]["features"][label]["names"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ()
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()
