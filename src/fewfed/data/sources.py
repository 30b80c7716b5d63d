"""Data by name or path: what there is, where it lies and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fewfed.data.examples import Dataset, checked
from fewfed.data.readers import (
    cifar,
    csv_table,
    digits,
    har,
    hugging_face,
    idx,
    image_folder,
    masks,
    medmnist,
    npz,
    office,
    parquet,
    urbansound,
)
from fewfed.data.readers.folders import cache_folder, search_path
from fewfed.data.readers.options import DataOptions
from fewfed.errors import DataError, did_you_mean
from fewfed.settings import check

__all__ = ["DataOptions", "Presence", "Source", "available", "cache_folder", "load", "names", "search_path"]

Reader = Callable[[Path, DataOptions, int], Dataset]


@dataclass(frozen=True)
class Source:
    """A data set known by name. `places`: its folders below a search folder; `marker`: what one of them must hold."""

    name: str
    what: str
    read: Reader
    places: tuple[str, ...]
    marker: str
    by_hand: str = ""
    """How to get it where no download is possible."""

    @property
    def obtain(self) -> str:
        return self.by_hand or f"run: fewfed data get {self.name}"

    def looked(self) -> tuple[Path, ...]:
        return tuple(folder / place for folder in search_path() for place in self.places)

    def find(self) -> Path | None:
        return next((place for place in self.looked() if any(place.glob(self.marker))), None)


@dataclass(frozen=True)
class Presence:
    """Whether a data set is on this machine, and how to get it if not."""

    name: str
    present: bool
    where: Path | None
    what: str
    looked: tuple[Path, ...]
    obtain: str


BUILT_IN = Source("digits", "1 797 hand-written digits, 8 x 8, 10 classes (scikit-learn)", digits.read, (), "")
SOURCES = (
    BUILT_IN,
    Source(
        "cifar10",
        "60 000 photographs, 32 x 32, 10 classes",
        cifar.read_cifar10,
        ("cifar-10-batches-py", "cifar10/cifar-10-batches-py"),
        "data_batch_1",
    ),
    Source(
        "cifar100",
        "60 000 photographs, 32 x 32, 100 classes",
        cifar.read_cifar100,
        ("cifar-100-python", "cifar100/cifar-100-python"),
        "train",
    ),
    Source(
        "mnist",
        "70 000 hand-written digits, 28 x 28, 10 classes",
        idx.read_mnist,
        ("mnist", "MNIST/raw"),
        "train-images*",
    ),
    Source(
        "fashion-mnist",
        "70 000 pictures of clothes, 28 x 28, 10 classes",
        idx.read_fashion_mnist,
        ("fashion-mnist", "FashionMNIST/raw"),
        "train-images*",
    ),
    Source(
        "har",
        "10 299 windows of phone motion, 128 x 9, 6 activities of 30 people",
        har.read,
        ("UCI HAR Dataset", "har/UCI HAR Dataset"),
        "train/Inertial Signals",
    ),
    Source(
        "urbansound8k",
        "8 732 clips of city sounds as log-mel, 2 x 64 x 344, 10 classes",
        urbansound.read,
        ("UrbanSound8K", "urbansound8k"),
        str(urbansound.METADATA),
    ),
    Source(
        "office",
        "Office-Caltech-10: 2 533 photographs, 256 x 256, 10 classes, 4 domains",
        office.read,
        ("office_caltech_10", "office-caltech-10"),
        office.DOMAINS[0],
        by_hand="put the folders amazon, caltech, dslr and webcam, one sub-folder a class, into office_caltech_10",
    ),
    Source(
        "retina",
        "DRIVE and CHASE_DB1: 68 photographs of the retina with vessel masks, read at 128 x 128, 2 hospitals",
        masks.read_retina,
        ("retina_vessels", "retina"),
        masks.RETINA_SITES[0],
        by_hand="put drive/training, drive/testing and chase, each with images and vessels, into retina_vessels",
    ),
    Source(
        "pneumonia",
        "PneumoniaMNIST: 5 332 chest X-rays, 28 x 28, 2 classes",
        medmnist.read,
        (".", "medmnist", "pneumoniamnist"),
        medmnist.FILE,
    ),
)
FILE_READERS: tuple[tuple[str, Reader], ...] = (
    (".npz", npz.read),
    (".csv", csv_table.read),
    (".parquet", parquet.read),
)


def names() -> list[str]:
    """The data sets that can be loaded by name."""
    return [source.name for source in SOURCES]


def available() -> list[Presence]:
    """Every known data set, with where it was found or where it was looked for."""
    found = [(source, source.find()) for source in SOURCES]
    return [
        Presence(
            name=source.name,
            present=source is BUILT_IN or where is not None,
            where=where,
            what=source.what,
            looked=source.looked(),
            obtain="comes with scikit-learn" if source is BUILT_IN else source.obtain,
        )
        for source, where in found
    ]


def load(name_or_path: str, *, options: DataOptions = DataOptions(), seed: int = 0) -> Dataset:  # noqa: B008
    """A known data set by name, or a user's own by path. The seed decides hold-outs and frozen augmentation."""
    check(options)
    for source in SOURCES:
        if source.name == name_or_path:
            return checked(source.read(_place_of(source), options, seed))
    path = Path(name_or_path).expanduser()
    if path.exists():
        return checked(_reader_of(path)(path, options, seed))
    if _looks_like_a_path(name_or_path):
        raise DataError(f"there is no file or folder {path}: expected a path, or one of the names {', '.join(names())}")
    raise DataError(did_you_mean("data", name_or_path, names()))


def _place_of(source: Source) -> Path:
    where = source.find()
    if where is not None:
        return where
    if source is BUILT_IN:
        return Path()
    looked = ", ".join(str(place) for place in source.looked())
    raise DataError(
        f"data '{source.name}' is not on this machine (looked for {looked}): {source.obtain}, "
        "or set FEWFED_DATA to the folder that holds it"
    )


def _reader_of(path: Path) -> Reader:
    if path.is_dir():
        return _folder_reader(path)
    for suffix, reader in FILE_READERS:
        if path.suffix.lower() == suffix:
            return reader
    expected = ", ".join(suffix for suffix, _ in FILE_READERS)
    raise DataError(f"{path} is of no known kind: expected a file ending in {expected}, or a folder")


def _folder_reader(folder: Path) -> Reader:
    if hugging_face.is_saved(folder):
        return hugging_face.read
    for suffix, reader in ((".csv", csv_table.read_folder), (".parquet", parquet.read_folder)):
        if (folder / f"train{suffix}").is_file() and (folder / f"test{suffix}").is_file():
            return reader
    return masks.read if masks.has_pairs(folder) else image_folder.read


def _looks_like_a_path(text: str) -> bool:
    return "/" in text or "\\" in text or any(text.lower().endswith(suffix) for suffix, _ in FILE_READERS)
