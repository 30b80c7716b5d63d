"""What a user hands over for prediction, as raw inputs laid out as in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfed.data.raw_inputs import RawInputs
from fewfed.data.readers.inputs import as_inputs
from fewfed.data.readers.new_rows import NewRows, inputs_from
from fewfed.data.readers.options import DataOptions
from fewfed.errors import DataError, in_one_line
from fewfed.runs.blueprint import Blueprint
from fewfed.trained.tables import inputs_of_table, is_table


def raw_rows(given: Any, blueprint: Blueprint, options: DataOptions) -> Tensor:
    """Inputs before they are scaled, checked to be what the model takes."""
    if isinstance(given, (str, Path)):
        x = rows_in(Path(given), blueprint, options).x
    elif is_table(given):
        x = inputs_of_table(given, blueprint)
    else:
        x = _of_array(given, blueprint)
    return fitting(x, blueprint)


def rows_in(path: Path, blueprint: Blueprint, options: DataOptions) -> NewRows:
    """The rows of a file or folder, and what else it says of them."""
    try:
        return inputs_from(path.expanduser(), blueprint.inputs or RawInputs("array"), blueprint.shape, options)
    except (OSError, ValueError) as error:  # A name that no file can have, a folder that may not be looked into.
        said = in_one_line(error)
        raise DataError(f"{str(path)[:200]!r} cannot be read ({said}): expected files you may read") from error


def fitting(x: Tensor, blueprint: Blueprint) -> Tensor:
    """The inputs themselves, or an error where the model could not take them."""
    shape = blueprint.shape
    if x.shape[1:] != shape and shape[:1] == (1,) and x.shape[1:] == shape[1:]:
        x = x.unsqueeze(1)  # Grey images without an axis for channels.
    if tuple(x.shape[1:]) != shape:
        raise DataError(f"inputs have shape {tuple(x.shape)}: expected {_told(shape)}, as the model was trained on")
    if not len(x):
        raise DataError("there are no rows to predict: expected at least one")
    filled = any(one is not None and one.fill is not None for one in _constants(blueprint))
    bad = torch.isinf(x) if filled else ~torch.isfinite(x)
    if bool(bad.any()):
        row = int(bad.flatten(1).any(1).nonzero()[0])
        what = "infinity" if filled else "NaN or infinity"
        raise DataError(
            f"row {row + 1} holds {what}: expected finite numbers"
            + ("" if filled else "; the model fills in missing values only if it was trained with missing = mean")
        )
    return x


def _constants(blueprint: Blueprint) -> list[Any]:
    return [blueprint.scaling.common, *blueprint.scaling.sites.values()]


def _of_array(given: Any, blueprint: Blueprint) -> Tensor:
    if isinstance(given, Tensor):
        tensor: Tensor = given.detach().cpu()
        if tensor.is_floating_point():
            return tensor if tensor.dim() > 1 else tensor.reshape(-1, 1)
        given = tensor.numpy()
    try:
        array = np.asarray(given)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"inputs of type {type(given).__name__} are no array: expected {_told(blueprint.shape)}, or a table with "
            "columns, or a path"
        ) from error
    return as_inputs("to predict", array)


def _told(shape: tuple[int, ...]) -> str:
    return f"(rows, {', '.join(map(str, shape))})"
