"""A folder of images: one sub-folder a class, or one a site with class folders in it; perhaps below `train` and `test`.

CLASS/IMAGE, SITE/CLASS/IMAGE, train/CLASS/IMAGE and train/SITE/CLASS/IMAGE are told apart by their names, or by the
option `layout`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewfed.data.raw_inputs import RawInputs
from fewfed.data.readers.options import DataOptions
from fewfed.data.readers.own_rows import Part, Rows
from fewfed.data.readers.pictures import SUFFIXES, decode, survey
from fewfed.data.readers.roles import SITE
from fewfed.data.reading import Reading
from fewfed.errors import ConfigError, DataError

PARTS = ("train", "test")
PART_NAMES = frozenset((*PARTS, "training", "testing", "val", "valid", "validation"))


@dataclass(frozen=True)
class Listing:
    """Image files in a stable order, the class folder of each, and the site folder where there are sites."""

    files: tuple[Path, ...]
    labels: tuple[str, ...]
    sites: tuple[str, ...] = ()


def contents(folder: Path, options: DataOptions) -> list[Listing]:
    """Of the training and the test part, or of the only one."""
    parts = [folder / part for part in PARTS]
    places = parts if all(part.is_dir() for part in parts) else [folder]
    by_site = has_sites(places[0], options)
    return [listed_by_site(place) if by_site else listed(place) for place in places]


def rows_of(name: str, listings: Sequence[Listing], options: DataOptions) -> Rows:
    for option, value in options.own_only().items():
        if option not in ("test_data", "layout", "missing"):
            raise ConfigError(
                f"{option} = {value!r} names a column, which folders of images have not: leave it out; class folders "
                "are the classes, and site folders around them the sites"
            )
    if len(listings) > 1:
        unknown = sorted(set(listings[1].labels) - set(listings[0].labels))
        if unknown:
            raise DataError(f"the test part has a class '{unknown[0]}' that train lacks: expected the same classes")
    shape = survey([file for listing in listings for file in listing.files], options)
    parts = [
        Part(
            decode(listing.files, shape, options.limits),
            np.array(listing.labels),
            {SITE: np.array(listing.sites)} if listing.sites else {},
        )
        for listing in listings
    ]
    reading = Reading(data=name, site="folders" if listings[0].sites else "")
    return Rows(parts, RawInputs("images"), reading)


def files(folder: Path, options: DataOptions) -> list[Path]:
    """What `contents` lists."""
    return [file for listing in contents(folder, options) for file in listing.files]


def listed(folder: Path) -> Listing:
    """Every image below the class folders of `folder`."""
    pairs = [(file, entry.name) for entry in class_folders(folder) for file in images_in(entry)]
    if not pairs:
        raise DataError(
            f"{folder} has no images in class folders: expected one sub-folder a class with {', '.join(SUFFIXES)} files"
        )
    return Listing(tuple(file for file, _ in pairs), tuple(label for _, label in pairs))


def listed_by_site(folder: Path) -> Listing:
    """Every image below the class folders of the site folders of `folder`."""
    found = [
        (file, label.name, site.name)
        for site in class_folders(folder)
        for label in class_folders(site)
        for file in images_in(label)
    ]
    if not found:
        raise DataError(f"{folder} has no images in class folders of sites: expected SITE/CLASS/IMAGE files in it")
    files, labels, sites = zip(*found, strict=True)
    return Listing(files, labels, sites)


def has_sites(folder: Path, options: DataOptions) -> bool:
    """Whether the folders in a folder are sites with class folders in them; raise where nobody can tell.

    They are if no image lies in them directly and each shares the name of a sub-folder with another.
    """
    if options.layout != "auto":
        return options.layout == "sites"
    direct, inner = [], {}
    for entry in class_folders(folder):
        if any(_is_image(file) for file in entry.iterdir()):
            direct.append(entry.name)
        elif names := {below.name for below in class_folders(entry) if images_in(below)}:
            inner[entry.name] = names
    if not inner:
        return False
    first = next(iter(inner))
    state = "say --set layout=sites if folders are sites with class folders in them, --set layout=classes if not"
    if direct:
        raise DataError(
            f"{folder} has images in '{direct[0]}' itself but only in folders within '{first}': expected either "
            f"CLASS/IMAGE or SITE/CLASS/IMAGE everywhere; {state}"
        )
    shared = Counter(name for names in inner.values() for name in names)
    parts = sorted(name for name in shared if name.lower() in PART_NAMES)
    if parts:
        raise DataError(
            f"{folder} has a folder '{parts[0]}' within '{first}': expected train and test on top, as in "
            "train/SITE/CLASS/IMAGE and test/SITE/CLASS/IMAGE"
        )
    if all(any(shared[name] > 1 for name in names) for names in inner.values()):
        return True
    lone = next(entry for entry, names in inner.items() if all(shared[name] == 1 for name in names))
    raise DataError(
        f"{folder} holds folders within folders, and '{lone}' shares no class folder with another, so it may be a site "
        f"or a class: {state}"
    )


def class_folders(folder: Path) -> Sequence[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def images_in(folder: Path) -> Sequence[Path]:
    return sorted(file for file in folder.rglob("*") if _is_image(file))


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and file.is_file()
