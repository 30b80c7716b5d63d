"""MNIST and Fashion-MNIST: the idx format, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from fewfed.data.examples import Dataset, Examples
from fewfed.data.limits import Limits
from fewfed.data.readers import prepare
from fewfed.data.readers.opening import open_regular, size_of
from fewfed.data.readers.options import DataOptions, refuse_unusable
from fewfed.errors import DataError

DIGITS = tuple(str(digit) for digit in range(10))
GARMENTS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
UNSIGNED_BYTES = 0x08
MOST_AXES = 8
PARTS = ("train", "t10k")


def read_mnist(folder: Path, options: DataOptions, seed: int) -> Dataset:
    return _read("mnist", DIGITS, folder, options, seed)


def read_fashion_mnist(folder: Path, options: DataOptions, seed: int) -> Dataset:
    return _read("fashion-mnist", GARMENTS, folder, options, seed)


def files(folder: Path, options: DataOptions) -> list[Path]:
    """What `read_mnist` and `read_fashion_mnist` read."""
    return [_find(folder, f"{part}-{kind}", axes) for part in PARTS for kind, axes in (("images", 3), ("labels", 1))]


def read_idx(path: Path, limits: Limits | None = None) -> np.ndarray:
    """The array of bytes in an idx file: two zeros, the type, the number of axes, their sizes, the content."""
    limits = limits or Limits()
    stored = size_of(path, limits)
    try:
        with open_regular(path, limits) as file:
            if path.suffix != ".gz":
                return _array(path, file, stored, limits)
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _array(path, unpacked, stored, limits)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): expected an undamaged idx file; get it again") from error


def _array(path: Path, file: BinaryIO | gzip.GzipFile, stored: int, limits: Limits) -> np.ndarray:
    start = file.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] != UNSIGNED_BYTES:
        raise DataError(f"{path} is not an idx file of bytes: expected it to start with 00 00 08")
    axes = start[3]
    if axes > MOST_AXES:
        raise DataError(f"{path} has {axes} axes: expected 1 for labels and 3 for images")
    sizes = file.read(4 * axes)
    if len(sizes) < 4 * axes:
        raise DataError(f"{path} ends inside its header: expected an undamaged idx file; get it again")
    shape = tuple(np.frombuffer(sizes, dtype=">u4").tolist())
    expected = math.prod(shape)
    limits.check(str(path), expected, stored)
    content = file.read(expected)
    if len(content) < expected or file.read(1):
        found = f"{len(content)}" if len(content) < expected else f"more than {expected}"
        raise DataError(f"{path} holds {found} bytes of content: expected {expected}; get it again")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _read(name: str, class_names: tuple[str, ...], folder: Path, options: DataOptions, seed: int) -> Dataset:
    refuse_unusable(options, name, "image")
    train, test = (_part(folder, part, options.limits) for part in PARTS)
    train_x, test_x, scaling = prepare.images(train.x, test.x, options, seed)
    parts = Examples(train_x, train.y), Examples(test_x, test.y)
    return Dataset(name, *parts, len(class_names), class_names, scaling=scaling)


def _part(folder: Path, prefix: str, limits: Limits) -> Examples:
    images = read_idx(_find(folder, f"{prefix}-images", 3), limits)
    labels = read_idx(_find(folder, f"{prefix}-labels", 1), limits)
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or images.size == 0:
        raise DataError(
            f"{folder}: {prefix} images have shape {images.shape} and labels {labels.shape}; "
            "expected (n, height, width) and (n,)"
        )
    x = torch.from_numpy(images.astype(np.float32)).unsqueeze(1).div_(255)
    return Examples(x, torch.from_numpy(labels.astype(np.int64)))


def _find(folder: Path, stem: str, axes: int) -> Path:
    spellings = [f"{stem}{dot}idx{axes}-ubyte{ending}" for dot in "-." for ending in ("", ".gz")]
    for spelling in spellings:
        if (folder / spelling).is_file():
            return folder / spelling
    raise DataError(f"{folder} has no {spellings[0]} or {spellings[1]}: expected the four idx files; get them again")
