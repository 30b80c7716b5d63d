"""Arrays of users turned into float inputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fewfed.errors import DataError

CHANNEL_COUNTS = (1, 3, 4)


def as_inputs(name: str, array: np.ndarray) -> Tensor:
    """float32 rows. Bytes are taken for pixels: scaled to [0, 1], channels put first, a missing channel axis added."""
    if array.dtype.kind not in "biuf":
        raise DataError(f"data '{name}': inputs are of type {array.dtype}; expected a rectangular array of numbers")
    if array.ndim == 0:
        raise DataError(f"data '{name}': inputs are a single number; expected one row an example")
    if array.ndim == 1:
        array = array[:, None]
    if len(array) and not array.size:
        raise DataError(f"data '{name}': inputs have shape {array.shape}; expected at least one number in every row")
    if array.dtype == np.uint8 and array.ndim > 2:
        return torch.from_numpy(_channels_first(array).astype(np.float32, order="C")).div_(255)
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(array.astype(np.float32, order="C"))


def check_finite(name: str, x: Tensor, *, missing: bool = False) -> None:
    """Raise a `DataError` naming the first row with NaN or infinity: scaling would spread it over all rows.

    `missing`: NaN stands for what is missing, and is left to whoever fills it in.
    """
    flat = x.flatten(1)
    finite = (torch.isfinite(flat) | torch.isnan(flat) if missing else torch.isfinite(flat)).all(1)
    if not bool(finite.all()):
        row = int((~finite).nonzero()[0])
        raise DataError(
            f"data '{name}', row {row} holds NaN or infinity: expected finite numbers; clean such rows, or say what to "
            "do where NaN stands for a missing value (--missing mean or --missing drop)"
        )


def _channels_first(pixels: np.ndarray) -> np.ndarray:
    if pixels.ndim == 3:
        return pixels[:, None]
    if pixels.ndim == 4 and pixels.shape[3] in CHANNEL_COUNTS and pixels.shape[1] not in CHANNEL_COUNTS:
        return pixels.transpose(0, 3, 1, 2)
    return pixels
