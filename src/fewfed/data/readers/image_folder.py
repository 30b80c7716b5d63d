"""A folder with one sub-folder of images for each class, or `train` and `test` folders of that form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewfed.data.examples import Dataset
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.own import Part, own_dataset
from fewfed.data.readers.pictures import SUFFIXES, decode, survey
from fewfed.errors import DataError


@dataclass(frozen=True)
class Listing:
    """Image files in a stable order, and the class folder of each."""

    files: tuple[Path, ...]
    labels: tuple[str, ...]


def read(folder: Path, options: DataOptions, seed: int) -> Dataset:
    listings = _listings(folder)
    if len(listings) > 1:
        unknown = sorted(set(listings[1].labels) - set(listings[0].labels))
        if unknown:
            raise DataError(f"{folder / 'test'} has a class '{unknown[0]}' that train lacks: expected the same classes")
    shape = survey([file for listing in listings for file in listing.files], options)
    parts = [Part(decode(listing.files, shape, options.limits), np.array(listing.labels)) for listing in listings]
    return own_dataset(folder.name, parts[0], parts[1] if len(parts) > 1 else None, options, seed)


def files(folder: Path, options: DataOptions) -> list[Path]:
    """What `read` reads."""
    return [file for listing in _listings(folder) for file in listing.files]


def listed(folder: Path) -> Listing:
    """Every image below the class folders of `folder`."""
    pairs = [(file, entry.name) for entry in class_folders(folder) for file in images_in(entry)]
    if not pairs:
        raise DataError(
            f"{folder} has no images in class folders: expected one sub-folder a class with {', '.join(SUFFIXES)} files"
        )
    return Listing(tuple(file for file, _ in pairs), tuple(label for _, label in pairs))


def class_folders(folder: Path) -> Sequence[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def images_in(folder: Path) -> Sequence[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())


def _listings(folder: Path) -> list[Listing]:
    """Of the training and the test part, or of the only one."""
    parts = [folder / part for part in ("train", "test")]
    return [listed(part) for part in (parts if all(part.is_dir() for part in parts) else [folder])]
