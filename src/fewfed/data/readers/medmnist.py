"""PneumoniaMNIST in the file layout of MedMNIST."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fewfed.data.examples import Dataset, Examples
from fewfed.data.readers import prepare
from fewfed.data.readers.archive import arrays_in
from fewfed.data.readers.inputs import as_inputs
from fewfed.data.readers.labels import whole_numbers
from fewfed.data.readers.options import DataOptions, refuse_unusable
from fewfed.errors import DataError

FILE = "pneumoniamnist.npz"
CLASSES = ("normal", "pneumonia")


def read(folder: Path, options: DataOptions, seed: int) -> Dataset:
    """Its training and test parts; the validation part is left alone."""
    refuse_unusable(options, "pneumonia", "image")
    path = folder / FILE
    arrays = arrays_in(path, options.limits)
    train, test = (_part(path, arrays, part) for part in ("train", "test"))
    train_x, test_x, scaling = prepare.images(train.x, test.x, options, seed)
    parts = Examples(train_x, train.y), Examples(test_x, test.y)
    return Dataset("pneumonia", *parts, len(CLASSES), CLASSES, scaling=scaling)


def files(folder: Path, options: DataOptions) -> list[Path]:
    """What `read` reads."""
    return [folder / FILE]


def _part(path: Path, arrays: dict[str, np.ndarray], part: str) -> Examples:
    for kind in ("images", "labels"):
        if f"{part}_{kind}" not in arrays:
            raise DataError(f"{path} has no array '{part}_{kind}': expected the file as MedMNIST publishes it")
    images, labels = arrays[f"{part}_images"], arrays[f"{part}_labels"].reshape(-1)
    if images.dtype != np.uint8 or images.ndim != 3:
        raise DataError(f"{path}: {part}_images is {images.dtype} of shape {images.shape}; expected bytes (n, 28, 28)")
    return Examples(as_inputs("pneumonia", images), torch.from_numpy(whole_numbers(f"{path}, {part}", labels)))
