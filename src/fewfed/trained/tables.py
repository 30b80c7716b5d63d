"""Tables that a program hands over as raw inputs, encoded as those in files are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fewfed.data.limits import Limits
from fewfed.data.raw_inputs import InputColumn
from fewfed.data.readers.cells import name_of
from fewfed.data.readers.inputs import as_inputs
from fewfed.data.readers.table import SHOWN, Cells, NumberCells, TextCells
from fewfed.data.readers.table_inputs import encoded, joined
from fewfed.errors import DataError
from fewfed.runs.blueprint import Blueprint

MOST_LISTED = 10
WHERE = "the table"


def is_table(given: Any) -> bool:
    """Whether something has columns with names: of pandas, polars or pyarrow, or a dictionary of lists."""
    return isinstance(given, Mapping) or hasattr(given, "columns")


def inputs_of_table(given: Any, blueprint: Blueprint) -> Tensor:
    """The inputs in a table of whichever library, its columns in any order; others are left alone."""
    names = {str(name): name for name in _names(given)}
    wanted = _wanted(list(names), blueprint)
    for column in wanted:
        if column.name not in names:
            raise DataError(
                f"the new rows have no column '{column.name[:SHOWN]}', which the model was trained on: expected all of "
                f"{_listed([one.name for one in wanted])}; they have {_listed(list(names))}"
            )
    cells = {column.name: _cells(_values(given, names[column.name]), column) for column in wanted}
    if len({len(one.missing) for one in cells.values()}) != 1:
        raise DataError("the columns of the table differ in length: expected one value a row in each")
    parts = [encoded(f"column '{column.name[:SHOWN]}'", column, cells[column.name], "refuse") for column in wanted]
    return as_inputs(WHERE, joined(WHERE, parts, Limits()))


def _wanted(names: Sequence[str], blueprint: Blueprint) -> Sequence[InputColumn]:
    raw, shape = blueprint.inputs, blueprint.shape
    if raw is not None and raw.kind == "table":
        return raw.columns
    if len(shape) != 1 or len(names) != shape[0]:
        raise DataError(
            f"the model was not trained on a table of yours: expected an array of shape (rows, "
            f"{', '.join(map(str, shape))}), not the columns {_listed(names)}"
        )
    return [InputColumn(name) for name in names]


def _names(given: Any) -> list[Any]:
    if isinstance(given, Mapping):
        return list(given)
    return list(getattr(given, "column_names", None) or given.columns)


def _values(given: Any, name: Any) -> list[Any]:
    column = given[name]
    found = next((getattr(column, one) for one in ("to_pylist", "to_list", "tolist") if hasattr(column, one)), None)
    values = column if found is None else found()
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise DataError(
            f"column '{name!s:.80}' of the table is a {type(column).__name__}: expected a value for each row"
        )
    return list(values)


def _cells(values: Sequence[Any], column: InputColumn) -> Cells:
    """Numbers as they are, anything else as the text it would be in a file."""
    missing = [_is_missing(value) for value in values]
    if not column.categories and all(
        isinstance(value, (int, float, np.number)) or is_missing
        for value, is_missing in zip(values, missing, strict=True)
    ):
        numbers = [0.0 if is_missing else _float(value) for value, is_missing in zip(values, missing, strict=True)]
        return NumberCells(np.array(numbers), np.array(missing, bool))
    return TextCells(["" if is_missing else name_of(value) for value, is_missing in zip(values, missing, strict=True)])


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # A whole number without bound.
        return float("inf")


def _is_missing(value: Any) -> bool:
    # pandas has values for missing ones that are neither None nor NaN, and cannot be compared.
    odd = type(value).__name__ in ("NAType", "NaTType")
    return value is None or odd or (isinstance(value, (float, np.floating)) and bool(value != value))


def _listed(names: Sequence[str]) -> str:
    shown = [name[:SHOWN] for name in names[:MOST_LISTED]]
    return ", ".join(shown + ["..."] * (len(names) > MOST_LISTED))
