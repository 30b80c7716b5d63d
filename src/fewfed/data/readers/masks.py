"""Images with a mask for each, one folder a site: `SITE/images/NAME.png` and `SITE/masks/NAME.png` or `NAME_mask.png`.

A site may keep its own test part in `SITE/train` and `SITE/test` (or `training` and `testing`), each with both folders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fewfed.data.examples import Dataset, Examples
from fewfed.data.limits import Limits
from fewfed.data.raw_inputs import RawInputs
from fewfed.data.readers import prepare
from fewfed.data.readers.holdout import hold_out
from fewfed.data.readers.image_folder import class_folders, images_in
from fewfed.data.readers.options import DataOptions, refuse_unusable
from fewfed.data.readers.own import with_counts
from fewfed.data.readers.pictures import GREY_MODES, decode, opened, survey
from fewfed.data.reading import Reading
from fewfed.errors import ConfigError, DataError

IMAGES = "images"
MASKS = ("masks", "vessels")
PARTS = (("train", "test"), ("training", "testing"))
RETINA_SITES = ("drive", "chase")
RETINA_SIDE = 128


@dataclass(frozen=True)
class Pair:
    """An image and its mask."""

    image: Path
    mask: Path


@dataclass(frozen=True)
class Site:
    """The pairs of one site."""

    name: str
    train: Sequence[Pair]
    test: Sequence[Pair]
    places: np.ndarray
    """Of every training image its number among those of the folder, in the order of their names."""


def has_pairs(folder: Path) -> bool:
    """Whether a folder, or a folder in it, is a site."""
    return any(_is_site(place) for place in (folder, *class_folders(folder)))


def read(folder: Path, options: DataOptions, seed: int) -> Dataset:
    """Every site is a domain; where it has no test part, the same fraction of each is held out."""
    sites = [_site(place, options.test_fraction, seed) for place in _places(folder)]
    made = _dataset(folder.name, sites, options, seed, options.classes or 2)
    own_parts = all(_parts(place) is not None for place in _places(folder))
    reading = Reading(
        data=folder.name,
        site="folders",
        test_part="part" if own_parts else "fraction of each site",
        fraction=0.0 if own_parts else options.test_fraction,
    )
    return with_counts(dataclasses.replace(made, inputs=RawInputs("images")), reading, "domain")


def read_retina(folder: Path, options: DataOptions, seed: int) -> Dataset:
    """Vessels in DRIVE (its own parts) and CHASE_DB1 (the last two in seven images test, so no child is in both)."""
    for name in RETINA_SITES:
        if not _is_site(folder / name):
            raise DataError(f"{folder / name} holds no images and vessels: expected the folders {IMAGES} and vessels")
    drive = _site(folder / "drive", options.test_fraction, seed)
    chase = pairs_in(folder / "chase")
    first_tested = 2 * (len(chase) * 5 // 14)
    sites = [drive, Site("chase", chase[:first_tested], chase[first_tested:], np.arange(first_tested))]
    smaller = dataclasses.replace(options, image_size=options.image_size or RETINA_SIDE)
    made = _dataset("retina", sites, smaller, seed, 2, ("background", "vessel"))
    return dataclasses.replace(made, inputs=RawInputs("images"))


def files(folder: Path, options: DataOptions) -> list[Path]:
    """What `read` reads."""
    return _files(_places(folder))


def files_retina(folder: Path, options: DataOptions) -> list[Path]:
    """What `read_retina` reads."""
    return _files([folder / name for name in RETINA_SITES if _is_site(folder / name)])


def pairs_in(folder: Path) -> list[Pair]:
    """The images of a folder, sorted, each with its mask; a `DataError` names what has no counterpart."""
    masks_folder = _masks_folder(folder)
    assert masks_folder is not None
    masks: dict[str, Path] = {}
    for mask in images_in(masks_folder):
        name = mask.stem.removesuffix("_mask")
        if name in masks:
            raise DataError(f"{mask} and {masks[name].name} are masks of the same image: expected one")
        masks[name] = mask
    images = {image.stem: image for image in images_in(folder / IMAGES)}
    if not images:
        raise DataError(f"{folder / IMAGES} has no images: expected at least one, with its mask in {masks_folder.name}")
    for name, image in images.items():
        if name not in masks:
            raise DataError(
                f"{image} has no mask: expected {masks_folder / name}.png or {name}_mask.png; add it or drop the image"
            )
    for name, mask in masks.items():
        if name not in images:
            raise DataError(f"{mask} has no image: expected {folder / IMAGES / name}.png; add it or remove the mask")
    return [Pair(image, masks[name]) for name, image in images.items()]


def decode_masks(pairs: Sequence[Pair], height: int, width: int, classes: int, limits: Limits) -> Tensor:
    """Class numbers, (masks, height, width). Two classes: whatever is not 0 is foreground. Else the pixel is the class.

    Resized by taking the nearest pixel, so that no class appears that was not there.
    """
    limits.check_total(f"{len(pairs)} masks of {width} x {height} pixels", 8 * len(pairs) * height * width)
    out = torch.empty(len(pairs), height, width, dtype=torch.long)
    for row, pair in enumerate(pairs):
        pixels = _class_numbers(pair, classes, limits)
        down, across = (_nearest(new, old) for new, old in zip((height, width), pixels.shape, strict=True))
        out[row] = torch.from_numpy(pixels[np.ix_(down, across)])
    return out


def _dataset(
    name: str,
    sites: Sequence[Site],
    options: DataOptions,
    seed: int,
    classes: int,
    class_names: tuple[str, ...] = (),
) -> Dataset:
    refuse_unusable(options, name, "image")
    if options.augment != "none":
        raise ConfigError(
            f"augment = '{options.augment}' would move the images of '{name}' but not their masks: leave it out"
        )
    train, test = ([pair for site in sites for pair in part(site)] for part in (_train, _test))
    shape = survey([pair.image for pair in (*train, *test)], options)
    train_y, test_y = (decode_masks(part, *shape[1:], classes, options.limits) for part in (train, test))
    # The files are resized while they are decoded.
    finishing = dataclasses.replace(options, image_size=0)
    train_x, test_x = (decode([pair.image for pair in part], shape, options.limits) for part in (train, test))
    train_x, test_x, scaling = prepare.images(train_x, test_x, finishing, seed)
    return Dataset(
        name=name,
        train=Examples(train_x, train_y),
        test=Examples(test_x, test_y),
        classes=classes,
        class_names=class_names,
        groups={"domain": np.repeat(np.arange(len(sites)), [len(site.train) for site in sites])},
        group_names={"domain": tuple(site.name for site in sites)},
        test_groups={"domain": np.repeat(np.arange(len(sites)), [len(site.test) for site in sites])},
        task="segmentation",
        scaling=scaling,
        places=np.concatenate([site.places for site in sites]),
    )


def _site(folder: Path, test_fraction: float, seed: int) -> Site:
    parts = _parts(folder)
    if parts is not None:
        train, test = (pairs_in(part) for part in parts)
        return Site(folder.name, train, test, np.arange(len(train)))
    pairs = pairs_in(folder)
    kept, held = hold_out(np.zeros(len(pairs), np.int64), test_fraction, seed)
    return Site(folder.name, [pairs[row] for row in kept], [pairs[row] for row in held], kept)


def _train(site: Site) -> Sequence[Pair]:
    return site.train


def _test(site: Site) -> Sequence[Pair]:
    return site.test


def _places(folder: Path) -> list[Path]:
    """The folders of the sites: the folder itself if it is one."""
    return [folder] if _is_site(folder) else [place for place in class_folders(folder) if _is_site(place)]


def _files(places: Sequence[Path]) -> list[Path]:
    pairs = [pair for place in places for part in _parts(place) or (place,) for pair in pairs_in(part)]
    return [file for pair in pairs for file in (pair.image, pair.mask)]


def _is_site(folder: Path) -> bool:
    return _masks_folder(folder) is not None or _parts(folder) is not None


def _parts(folder: Path) -> tuple[Path, Path] | None:
    for train, test in PARTS:
        if _masks_folder(folder / train) is not None and _masks_folder(folder / test) is not None:
            return folder / train, folder / test
    return None


def _masks_folder(folder: Path) -> Path | None:
    if not (folder / IMAGES).is_dir():
        return None
    return next((folder / name for name in MASKS if (folder / name).is_dir()), None)


def _class_numbers(pair: Pair, classes: int, limits: Limits) -> np.ndarray:
    pixels = _pixels(pair.mask, limits)
    with opened(pair.image, limits) as image:
        image_size = image.size
    if pixels.shape != (image_size[1], image_size[0]):
        raise DataError(
            f"{pair.mask} is {pixels.shape[1]} x {pixels.shape[0]} but its image is {image_size[0]} x {image_size[1]}: "
            "expected the same size"
        )
    values = np.unique(pixels)
    if classes == 2:
        if len(values[values != 0]) > 1:
            raise DataError(
                f"{pair.mask} has {len(values)} different values: expected 0 and one other for the foreground, stored "
                "without loss (not JPEG); for more classes set classes to their number"
            )
        foreground: np.ndarray = (pixels != 0).astype(np.int64)
        return foreground
    if values[-1] >= classes:
        raise DataError(f"{pair.mask} has the value {values[-1]}: expected classes 0 to {classes - 1}")
    return pixels.astype(np.int64)


def _pixels(path: Path, limits: Limits) -> np.ndarray:
    with opened(path, limits) as image:
        # A palette's numbers are the classes; its colours are only for looking at.
        pixels: np.ndarray = np.asarray(image if image.mode in (*GREY_MODES, "P") else image.convert("L"))
    return pixels


def _nearest(new: int, old: int) -> np.ndarray:
    """For each of `new` positions the one of `old` that lies under its middle."""
    return ((np.arange(new) + 0.5) * old / new).astype(np.int64)
