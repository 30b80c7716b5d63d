"""CIFAR-10 and CIFAR-100 in the layout of their python version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewfed.data.examples import Dataset, Examples
from fewfed.data.readers import prepare
from fewfed.data.readers.options import DataOptions, refuse_unusable
from fewfed.data.readers.safe_pickle import load_plain
from fewfed.data.transforms import Scaling
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


def read_cifar10(folder: Path, options: DataOptions, seed: int) -> Dataset:
    # The released FLea code scales with these constants.
    scaling = Scaling.published((0.49139968, 0.48215827, 0.44653124), (0.24703233, 0.24348505, 0.26158768))
    batches = tuple(f"data_batch_{number}" for number in range(1, 6))
    layout = Layout("cifar10", 10, batches, "test_batch", b"labels", "batches.meta", b"label_names", scaling)
    return _read(layout, folder, options, seed)


def read_cifar100(folder: Path, options: DataOptions, seed: int) -> Dataset:
    layout = Layout("cifar100", 100, ("train",), "test", b"fine_labels", "meta", b"fine_label_names", None)
    return _read(layout, folder, options, seed)


def _read(layout: Layout, folder: Path, options: DataOptions, seed: int) -> Dataset:
    refuse_unusable(options, layout.name, "image")
    train = _join([_batch(folder / name, layout.labels) for name in layout.train])
    test = _batch(folder / layout.test, layout.labels)
    train_x, test_x = prepare.images(train.x, test.x, options, seed, layout.scaling)
    return Dataset(
        name=layout.name,
        train=Examples(train_x, train.y),
        test=Examples(test_x, test.y),
        classes=layout.classes,
        class_names=_class_names(folder / layout.meta, layout.names),
    )


def _batch(path: Path, label_key: bytes) -> Examples:
    if not path.is_file():
        raise DataError(f"{path} is missing: expected every batch of the python version; get the data set again")
    content = load_plain(path)
    pixels = _entry(path, content, b"data")
    labels = _entry(path, content, label_key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise DataError(f"{path} does not hold images: expected an array of bytes with 3072 columns")
    if len(labels) != len(pixels):
        raise DataError(f"{path} holds {len(pixels)} images but {len(labels)} labels; expected as many of each")
    x = torch.from_numpy(pixels.reshape(-1, 3, 32, 32).astype(np.float32)).div_(255)
    return Examples(x, torch.tensor(labels, dtype=torch.int64))


def _entry(path: Path, content: Any, key: bytes) -> Any:
    if isinstance(content, dict):
        for spelling in (key, key.decode()):
            if spelling in content:
                return content[spelling]
    raise DataError(f"{path} has no entry '{key.decode()}': expected a CIFAR batch of the python version")


def _join(batches: Sequence[Examples]) -> Examples:
    return Examples(torch.cat([batch.x for batch in batches]), torch.cat([batch.y for batch in batches]))


def _class_names(path: Path, key: bytes) -> tuple[str, ...]:
    if not path.is_file():
        return ()
    return tuple(name.decode() if isinstance(name, bytes) else name for name in _entry(path, load_plain(path), key))
