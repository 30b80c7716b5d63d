"""Tables with named columns as raw inputs: numbers as they are, categories as one number each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfed.data.raw_inputs import InputColumn
from fewfed.errors import DataError
from fewfed.runs.blueprint import Blueprint

SHOWN = 80
MOST_LISTED = 10


def is_table(given: Any) -> bool:
    """Whether something has columns with names: of pandas, polars or pyarrow, or a dictionary of lists."""
    return isinstance(given, Mapping) or hasattr(given, "columns")


def inputs_of_table(given: Any, blueprint: Blueprint) -> Tensor:
    """The inputs in a table of whichever library."""
    return inputs_of_columns({str(name): _values(given, name) for name in _names(given)}, blueprint)


def inputs_of_columns(columns: Mapping[str, Sequence[Any]], blueprint: Blueprint) -> Tensor:
    """The inputs in columns of values, in any order; other columns are left alone."""
    raw, shape, names = blueprint.inputs, blueprint.shape, list(columns)
    if raw is None or not raw.columns:
        if len(shape) != 1 or len(names) != shape[0]:
            raise DataError(
                f"the model was not trained on a table of yours: expected an array of shape (rows, "
                f"{', '.join(map(str, shape))}), not the columns {_listed(names)}"
            )
        wanted: Sequence[InputColumn] = [InputColumn(name) for name in names]
    else:
        wanted = raw.columns
    for column in wanted:
        if column.name not in columns:
            raise DataError(
                f"the new rows have no column '{column.name[:SHOWN]}', which the model was trained on: expected all of "
                f"{_listed([one.name for one in wanted])}; they have {_listed(names)}"
            )
    parts = [encoded(column, columns[column.name]) for column in wanted]
    if len({len(part) for part in parts}) != 1:
        raise DataError("the columns of the table differ in length: expected one value a row in each")
    return torch.from_numpy(np.concatenate(parts, axis=1)).float()


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


def encoded(column: InputColumn, values: Sequence[Any]) -> np.ndarray:
    """The cells of a column as the numbers an input has for it: NaN where a number is missing, zeros where a category
    is."""
    if not column.categories:
        return np.array([_number(column.name, row, value) for row, value in enumerate(values)])[:, None]
    places = {category: place for place, category in enumerate(column.categories)}
    found = np.zeros((len(values), len(places)))
    for row, value in enumerate(values):
        if _is_missing(value):
            continue
        place = next((places[text] for text in _spellings(value) if text in places), None)
        if place is None:
            raise DataError(
                f"column '{column.name[:SHOWN]}', row {row + 1} holds '{str(value)[:SHOWN]}', which no training row "
                f"has: expected one of {_listed(column.categories)}"
            )
        found[row, place] = 1.0
    return found


def _number(name: str, row: int, value: Any) -> float:
    if _is_missing(value):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise DataError(
            f"column '{name[:SHOWN]}', row {row + 1} holds '{str(value)[:SHOWN]}': expected a number"
        ) from None


def _is_missing(value: Any) -> bool:
    # pandas has values for missing ones that are neither None nor NaN, and cannot be compared.
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def _spellings(value: Any) -> tuple[str, ...]:
    """How a category may be written: a column of whole numbers in which one is missing is one of fractions."""
    text = str(value)
    return (text, text.removesuffix(".0")) if isinstance(value, float) else (text,)


def _listed(names: Sequence[str]) -> str:
    shown = [name[:SHOWN] for name in names[:MOST_LISTED]]
    return ", ".join(shown + ["..."] * (len(names) > MOST_LISTED))
