"""Image files and encoded image bytes as one tensor in [0, 1]."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfed.data.limits import Limits
from fewfed.data.readers.extras import need
from fewfed.data.readers.opening import open_regular, size_of
from fewfed.data.readers.options import DataOptions
from fewfed.errors import DataError

Picture = Path | bytes
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("PNG", "JPEG", "BMP", "DIB", "WEBP", "GIF", "TIFF", "PPM", "JPEG2000")
"""Others are not looked for: some start a program to be decoded."""
GREY_MODES = ("1", "L", "I", "I;16", "I;16B", "I;16L")
WIDE_MODES = GREY_MODES[2:]
PIXEL_BYTES = 4
"""What a pixel takes while it is decoded, at most."""


def survey(pictures: Sequence[Picture], options: DataOptions) -> tuple[int, int, int]:
    """Channels, height and width all pictures can share: grey only if all are, and `image_size` squared if set."""
    grey = True
    sizes: dict[tuple[int, int], int] = {}
    for index, picture in enumerate(pictures):
        with opened(picture, options.limits, index) as image:
            grey &= image.mode in GREY_MODES
            sizes.setdefault(image.size, index)
    if options.image_size:
        return (1 if grey else 3, options.image_size, options.image_size)
    if len(sizes) > 1:
        (first, one), (second, other) = list(sizes.items())[:2]
        raise DataError(
            f"images differ in size ({_name(pictures[one], one)} is {first[0]} x {first[1]}, "
            f"{_name(pictures[other], other)} is {second[0]} x {second[1]}): expected one size, or one that all are "
            "resized to: say it with --size PIXELS"
        )
    width, height = next(iter(sizes))
    return (1 if grey else 3, height, width)


def decode(pictures: Sequence[Picture], shape: tuple[int, int, int], limits: Limits) -> Tensor:
    """One row a picture, resized where it does not have the shape's size yet."""
    limits.check_total(
        f"{len(pictures)} images of {shape[2]} x {shape[1]} pixels", 4 * len(pictures) * math.prod(shape)
    )
    out = torch.empty(len(pictures), *shape)
    for index, picture in enumerate(pictures):
        with opened(picture, limits, index) as image:
            pixels = _pixels(image, shape)
        out[index] = torch.from_numpy(pixels)
    return out


@contextmanager
def opened(picture: Picture, limits: Limits, index: int = 0) -> Iterator[Any]:
    """The image with its header read; whatever fails while it is used here is said to be the picture's fault."""
    pil = need("PIL.Image", "images", "reading images")
    with ExitStack() as stack:
        stored = len(picture) if isinstance(picture, bytes) else size_of(picture, limits)
        file = io.BytesIO(picture) if isinstance(picture, bytes) else stack.enter_context(open_regular(picture, limits))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of large images: the limits say which are too large
                image = stack.enter_context(pil.open(file, formats=FORMATS))
                _check_header(image, picture, index, stored, limits)
                yield image
        except (DataError, MemoryError):
            raise
        except Exception as error:  # a damaged image can raise nearly anything
            raise DataError(
                f"{_name(picture, index)} cannot be read as an image ({type(error).__name__}): "
                "expected an undamaged image file; replace or remove it"
            ) from error


def _check_header(image: Any, picture: Picture, index: int, stored: int, limits: Limits) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise DataError(f"{_name(picture, index)} is {width} x {height} pixels: expected at least one")
    if image.mode == "F":
        raise DataError(f"{_name(picture, index)} holds floating point pixels: expected 8 or 16 bits a channel")
    limits.check(f"{_name(picture, index)} of {width} x {height} pixels", PIXEL_BYTES * width * height, stored)


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


def _name(picture: Picture, index: int) -> str:
    return str(picture) if isinstance(picture, Path) else f"image of row {index}"
