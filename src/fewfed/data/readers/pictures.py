"""Image files and encoded image bytes as one tensor in [0, 1]."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfed.data.readers.extras import need
from fewfed.errors import DataError

Picture = Path | bytes
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
GREY_MODES = ("1", "L", "I", "I;16", "I;16B", "I;16L")
WIDE_MODES = GREY_MODES[2:]


def survey(pictures: Sequence[Picture], size: int = 0) -> tuple[int, int, int]:
    """Channels, height and width all pictures can share: grey only if all are, and `size` squared if it is given."""
    grey = True
    sizes: dict[tuple[int, int], int] = {}
    for index, picture in enumerate(pictures):
        with _opened(picture, index) as image:
            grey &= image.mode in GREY_MODES
            sizes.setdefault(image.size, index)
    if size:
        return (1 if grey else 3, size, size)
    if len(sizes) > 1:
        (first, one), (second, other) = list(sizes.items())[:2]
        raise DataError(
            f"images differ in size ({_name(pictures[one], one)} is {first[0]} x {first[1]}, "
            f"{_name(pictures[other], other)} is {second[0]} x {second[1]}): expected one size; set image_size"
        )
    width, height = next(iter(sizes))
    return (1 if grey else 3, height, width)


def decode(pictures: Sequence[Picture], shape: tuple[int, int, int]) -> Tensor:
    """One row a picture, resized where it does not have the shape's size yet."""
    out = torch.empty(len(pictures), *shape)
    for index, picture in enumerate(pictures):
        with _opened(picture, index) as image:
            try:
                pixels = _pixels(image, shape)
            except (OSError, SyntaxError, ValueError) as error:
                raise _unreadable(picture, index, error) from error
        out[index] = torch.from_numpy(pixels)
    return out


def _pixels(image: Any, shape: tuple[int, int, int]) -> np.ndarray:
    channels, height, width = shape
    if image.mode in WIDE_MODES:
        # PIL's own conversion clips sixteen bits to eight instead of scaling them.
        image = need("PIL.Image", "images", "reading images").fromarray(np.asarray(image, dtype=np.float32) / 65535)
    elif channels == 1:
        image = image.convert("L")
    else:
        image = image.convert("RGB")
    if image.size != (width, height):
        image = image.resize((width, height), need("PIL.Image", "images", "reading images").Resampling.BILINEAR)
    scale = 1 if image.mode == "F" else 255
    pixels = np.asarray(image, dtype=np.float32) / scale
    return (
        np.broadcast_to(pixels, shape).copy() if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    )


def _opened(picture: Picture, index: int) -> Any:
    pil = need("PIL.Image", "images", "reading images")
    try:
        image = pil.open(io.BytesIO(picture) if isinstance(picture, bytes) else picture)
    except (OSError, SyntaxError, ValueError, pil.DecompressionBombError) as error:
        raise _unreadable(picture, index, error) from error
    if image.mode == "F":
        raise DataError(f"{_name(picture, index)} holds floating point pixels: expected 8 or 16 bits a channel")
    return image


def _unreadable(picture: Picture, index: int, error: Exception) -> DataError:
    return DataError(
        f"{_name(picture, index)} cannot be read as an image ({type(error).__name__}): "
        "expected an undamaged image file; replace or remove it"
    )


def _name(picture: Picture, index: int) -> str:
    return str(picture) if isinstance(picture, Path) else f"image of row {index}"
