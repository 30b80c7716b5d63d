"""MNIST and Fashion-MNIST: the idx format, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch

from fewfed.data.examples import Dataset, Examples
from fewfed.data.readers import prepare
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


def read_mnist(folder: Path, options: DataOptions, seed: int) -> Dataset:
    return _read("mnist", DIGITS, folder, options, seed)


def read_fashion_mnist(folder: Path, options: DataOptions, seed: int) -> Dataset:
    return _read("fashion-mnist", GARMENTS, folder, options, seed)


def read_idx(path: Path) -> np.ndarray:
    """The array of bytes in an idx file: two zeros, the type, the number of axes, their sizes, the content."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): expected an undamaged idx file; get it again") from error
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != UNSIGNED_BYTES:
        raise DataError(f"{path} is not an idx file of bytes: expected it to start with 00 00 08")
    start = 4 + 4 * raw[3]
    if len(raw) < start:
        raise DataError(f"{path} ends inside its header: expected an undamaged idx file; get it again")
    shape = tuple(np.frombuffer(raw, dtype=">u4", count=raw[3], offset=4).tolist())
    if len(raw) - start != math.prod(shape):
        raise DataError(f"{path} holds {len(raw) - start} bytes of content: expected {math.prod(shape)}; get it again")
    return np.frombuffer(raw, dtype=np.uint8, offset=start).reshape(shape)


def _read(name: str, class_names: tuple[str, ...], folder: Path, options: DataOptions, seed: int) -> Dataset:
    refuse_unusable(options, name, "image")
    train, test = _part(folder, "train"), _part(folder, "t10k")
    train_x, test_x = prepare.images(train.x, test.x, options, seed)
    return Dataset(name, Examples(train_x, train.y), Examples(test_x, test.y), len(class_names), class_names)


def _part(folder: Path, prefix: str) -> Examples:
    images = read_idx(_find(folder, f"{prefix}-images", 3))
    labels = read_idx(_find(folder, f"{prefix}-labels", 1))
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
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
