"""Arrays and lists of numbers that a user hands over, as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfed.errors import DataError, in_one_line

_FLOATS, _WHOLE = "f", "iub"


def tensor_of(values: Any, what: str, whole: torch.dtype) -> Tensor:
    """Numbers as a tensor: single precision, and whole numbers as `whole`. `what` they are called in an error."""
    expected = "expected a tensor, or an array or a list of numbers"
    if not isinstance(values, (list, tuple)) and not hasattr(values, "__array__"):
        raise DataError(f"{what} are a {type(values).__name__}: {expected}")
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise DataError(f"{what} are an array with masked values: {expected} without missing ones")
    try:
        array = np.asarray(values)
    except (
        ValueError,
        TypeError,
        RuntimeError,
    ) as error:  # Rows of different lengths, say.
        raise DataError(f"{what} are no array ({in_one_line(error):.200}): {expected}, each row as long") from error
    if array.dtype.kind not in _FLOATS + _WHOLE:
        raise DataError(f"{what} are an array of {array.dtype}: {expected}")
    is_whole = array.dtype.kind in _WHOLE
    if is_whole and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise DataError(f"{what} go up to {int(array.max())}: expected numbers below 2^63")
    # A copy: the user's own array may change later, and may lie in memory as torch cannot have it.
    with np.errstate(over="ignore"):  # What is too large becomes infinite, and is told with its row later.
        made = np.array(array, dtype=np.int64 if is_whole else np.float32, order="C")
    return torch.from_numpy(made).to(whole) if is_whole else torch.from_numpy(made)
