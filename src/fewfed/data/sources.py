"""Data by name or path: what there is, where it lies and how it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fewfed.data.examples import Dataset, checked
from fewfed.data.readers import (
    cifar,
    digits,
    har,
    idx,
    masks,
    medmnist,
    office,
    own_kinds,
    urbansound,
)
from fewfed.data.readers.folders import cache_folder, search_path
from fewfed.data.readers.options import DataOptions
from fewfed.errors import ConfigError, DataError, did_you_mean
from fewfed.settings import check

__all__ = ["DataOptions", "Presence", "Source", "available", "cache_folder", "files", "load", "names", "search_path"]

SHOWN = 200
"""Letters of a name that an error repeats."""

Reader = Callable[[Path, DataOptions, int], Dataset]
Lister = Callable[[Path, DataOptions], Sequence[Path]]
"""The files that a reader reads."""


@dataclass(frozen=True)
class Layout:
    """A kind of file or folder: how it is read, and which files that takes."""

    read: Reader
    files: Lister


@dataclass(frozen=True)
class Source:
    """A data set known by name. `places`: its folders below a search folder; `marker`: what one of them must hold."""

    name: str
    what: str
    layout: Layout
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


BUILT_IN = Source(
    "digits", "1 797 hand-written digits, 8 x 8, 10 classes (scikit-learn)", Layout(digits.read, digits.files), (), ""
)
SOURCES = (
    BUILT_IN,
    Source(
        "cifar10",
        "60 000 photographs, 32 x 32, 10 classes",
        Layout(cifar.read_cifar10, cifar.files_cifar10),
        ("cifar-10-batches-py", "cifar10/cifar-10-batches-py"),
        "data_batch_1",
    ),
    Source(
        "cifar100",
        "60 000 photographs, 32 x 32, 100 classes",
        Layout(cifar.read_cifar100, cifar.files_cifar100),
        ("cifar-100-python", "cifar100/cifar-100-python"),
        "train",
    ),
    Source(
        "mnist",
        "70 000 hand-written digits, 28 x 28, 10 classes",
        Layout(idx.read_mnist, idx.files),
        ("mnist", "MNIST/raw"),
        "train-images*",
    ),
    Source(
        "fashion-mnist",
        "70 000 pictures of clothes, 28 x 28, 10 classes",
        Layout(idx.read_fashion_mnist, idx.files),
        ("fashion-mnist", "FashionMNIST/raw"),
        "train-images*",
    ),
    Source(
        "har",
        "10 299 windows of phone motion, 128 x 9, 6 activities of 30 people",
        Layout(har.read, har.files),
        ("UCI HAR Dataset", "har/UCI HAR Dataset"),
        "train/Inertial Signals",
    ),
    Source(
        "urbansound8k",
        "8 732 clips of city sounds as log-mel, 2 x 64 x 344, 10 classes",
        Layout(urbansound.read, urbansound.files),
        ("UrbanSound8K", "urbansound8k"),
        str(urbansound.METADATA),
    ),
    Source(
        "office",
        "Office-Caltech-10: 2 533 photographs, 256 x 256, 10 classes, 4 domains",
        Layout(office.read, office.files),
        ("office_caltech_10", "office-caltech-10"),
        office.DOMAINS[0],
        by_hand="put the folders amazon, caltech, dslr and webcam, one sub-folder a class, into office_caltech_10",
    ),
    Source(
        "retina",
        "DRIVE and CHASE_DB1: 68 photographs of the retina with vessel masks, read at 128 x 128, 2 hospitals",
        Layout(masks.read_retina, masks.files_retina),
        ("retina_vessels", "retina"),
        masks.RETINA_SITES[0],
        by_hand="put drive/training, drive/testing and chase, each with images and vessels, into retina_vessels",
    ),
    Source(
        "pneumonia",
        "PneumoniaMNIST: 5 332 chest X-rays, 28 x 28, 2 classes",
        Layout(medmnist.read, medmnist.files),
        (".", "medmnist", "pneumoniamnist"),
        medmnist.FILE,
    ),
)
OWN = Layout(own_kinds.read, own_kinds.files)
MASKS = Layout(masks.read, masks.files)


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
    """A known data set by name, or a user's own by path. The seed decides hold-outs and frozen augmentation.

    Inputs are not scaled: `Dataset.scaling` has the constants that the reader knows.
    """
    check(options)
    if not 0 <= seed < 1 << 63:
        raise ConfigError(f"seed = {seed}: expected 0 or more, and less than 2^63", key="seed", value=seed)
    with _understood(name_or_path):
        place, layout = _found(name_or_path)
        _refuse_own_options(name_or_path, layout, options)
        return checked(layout.read(place, options, seed))


def files(name_or_path: str, options: DataOptions) -> tuple[Path, list[Path]]:
    """Where a data set lies, and the files in that place that `load` would read."""
    with _understood(name_or_path):
        place, layout = _found(name_or_path)
        return place, list(layout.files(place, options))


def test_files(options: DataOptions) -> tuple[Path, list[Path]]:
    """The same of the test part that the options name."""
    with _understood(options.test_data):
        place = own_kinds.test_path(options)
        return place, list(own_kinds.files(place, options))


def _refuse_own_options(name: str, layout: Layout, options: DataOptions) -> None:
    if layout is OWN:
        return
    for option, value in options.own_only().items():
        raise ConfigError(
            f"{option} = {value!r} says how tables and folders of your own are read, and '{name[:SHOWN]}' is none of "
            "these: leave this option out",
            key=option,
            value=value,
        )


@contextmanager
def _understood(name: str) -> Iterator[None]:
    """What the system says about files and memory, as an error of the data."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):  # how torch says it
            raise
        raise DataError(f"data '{name}' does not fit into memory: use less of it, or a larger machine") from error
    except OSError as error:
        raise DataError(f"data '{name}' cannot be read ({error}): expected files that you may read") from error


def _found(name_or_path: str) -> tuple[Path, Layout]:
    for source in SOURCES:
        if source.name == name_or_path:
            return _place_of(source), source.layout
    path = _path(name_or_path)
    if path is not None:
        return path, _own_layout(path)
    if _looks_like_a_path(name_or_path):
        shown = name_or_path[:SHOWN]
        raise DataError(
            f"there is no file or folder {shown}: expected a path, or one of the names {', '.join(names())}"
        )
    raise DataError(did_you_mean("data", name_or_path[:SHOWN], names()))


def _path(text: str) -> Path | None:
    """The path if there is something at it."""
    try:
        path = Path(text).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long for a name, or the home of nobody
        return None


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


def _own_layout(path: Path) -> Layout:
    return MASKS if path.is_dir() and own_kinds.is_images(path) and masks.has_pairs(path) else OWN


def _looks_like_a_path(text: str) -> bool:
    return "/" in text or "\\" in text or any(text.lower().endswith(suffix) for suffix in own_kinds.FILES)
