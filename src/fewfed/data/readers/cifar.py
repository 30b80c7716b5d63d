"""CIFAR-10 and CIFAR-100 in the layout of their python version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewfed.data.examples import Dataset, Examples
from fewfed.data.limits import Limits
from fewfed.data.readers import prepare
from fewfed.data.readers.options import DataOptions, refuse_unusable
from fewfed.data.readers.safe_pickle import load_plain
from fewfed.data.scaling import Scaling
from fewfed.errors import DataError


@dataclass(frozen=True)
class Layout:
    name: str
    classes: int
    train: tuple[str, ...]
    test: str
    labels: bytes
    meta: str
    names: bytes
    scaling: Scaling | None


_CIFAR10 = Layout(
    name="cifar10",
    classes=10,
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    labels=b"labels",
    meta="batches.meta",
    names=b"label_names",
    # The released FLea code scales with these constants.
    scaling=Scaling.constants((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768)),
)
_CIFAR100 = Layout("cifar100", 100, ("train",), "test", b"fine_labels", "meta", b"fine_label_names", None)


def read_cifar10(folder: Path, options: DataOptions, seed: int) -> Dataset:
    return _read(_CIFAR10, folder, options, seed)


def read_cifar100(folder: Path, options: DataOptions, seed: int) -> Dataset:
    return _read(_CIFAR100, folder, options, seed)


def files_cifar10(folder: Path, options: DataOptions) -> list[Path]:
    """What `read_cifar10` reads."""
    return _files(_CIFAR10, folder)


def files_cifar100(folder: Path, options: DataOptions) -> list[Path]:
    """What `read_cifar100` reads."""
    return _files(_CIFAR100, folder)


def _files(layout: Layout, folder: Path) -> list[Path]:
    return [folder / name for name in (*layout.train, layout.test, layout.meta) if (folder / name).is_file()]


def _read(layout: Layout, folder: Path, options: DataOptions, seed: int) -> Dataset:
    refuse_unusable(options, layout.name, "image")
    train = _join([_batch(layout, folder / name, options.limits) for name in layout.train])
    test = _batch(layout, folder / layout.test, options.limits)
    train_x, test_x, scaling = prepare.images(train.x, test.x, options, seed, layout.scaling)
    return Dataset(
        name=layout.name,
        train=Examples(train_x, train.y),
        test=Examples(test_x, test.y),
        classes=layout.classes,
        class_names=_class_names(layout, folder / layout.meta, options.limits),
        scaling=scaling,
    )


def _batch(layout: Layout, path: Path, limits: Limits) -> Examples:
    if not path.is_file():
        raise DataError(f"{path} is missing: expected every batch of the python version; get the data set again")
    content = load_plain(path, limits)
    pixels = _entry(path, content, b"data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise DataError(f"{path} does not hold images: expected an array of bytes with 3072 columns")
    labels = _labels(path, _entry(path, content, layout.labels), layout.classes)
    if len(labels) != len(pixels):
        raise DataError(f"{path} holds {len(pixels)} images but {len(labels)} labels; expected as many of each")
    x = torch.from_numpy(pixels.reshape(-1, 3, 32, 32).astype(np.float32)).div_(255)
    return Examples(x, torch.tensor(labels, dtype=torch.int64))


def _labels(path: Path, found: Any, classes: int) -> list[int]:
    listed = found.tolist() if isinstance(found, np.ndarray) and found.ndim == 1 else found
    if not isinstance(listed, (list, tuple)):
        raise DataError(f"{path} has no list of labels: expected a whole number for each image")
    for row, label in enumerate(listed):
        # Only numbers are shown: anything else may be endless.
        if type(label) not in (int, float):
            raise DataError(f"{path} row {row} has a label of type {type(label).__name__}: expected a whole number")
        if label not in range(classes):
            raise DataError(f"{path} row {row} has label {label}: expected 0 to {classes - 1}, a whole number")
    return [int(label) for label in listed]


def _entry(path: Path, content: Any, key: bytes) -> Any:
    if isinstance(content, dict):
        for spelling in (key, key.decode()):
            if spelling in content:
                return content[spelling]
    raise DataError(f"{path} has no entry '{key.decode()}': expected a CIFAR batch of the python version")


def _join(batches: Sequence[Examples]) -> Examples:
    return Examples(torch.cat([batch.x for batch in batches]), torch.cat([batch.y for batch in batches]))


def _class_names(layout: Layout, path: Path, limits: Limits) -> tuple[str, ...]:
    if not path.is_file():
        return ()
    found = _entry(path, load_plain(path, limits), layout.names)
    if not isinstance(found, (list, tuple)) or not all(isinstance(name, (str, bytes)) for name in found):
        raise DataError(f"{path} has no list of names for its classes: expected text; get the data set again")
    try:
        return tuple((name.encode() if isinstance(name, str) else name).decode() for name in found)
    except UnicodeError as error:
        raise DataError(f"{path} has a class name that is no text in UTF-8: get the data set again") from error
