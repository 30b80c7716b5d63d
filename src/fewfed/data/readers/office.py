"""Office-Caltech-10: ten classes photographed in four domains."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import torch

from fewfed.data.examples import Dataset, Examples
from fewfed.data.readers import prepare
from fewfed.data.readers.holdout import hold_out
from fewfed.data.readers.image_folder import Listing, listed
from fewfed.data.readers.labels import class_ids
from fewfed.data.readers.options import DataOptions, refuse_unusable
from fewfed.data.readers.pictures import decode
from fewfed.errors import DataError

DOMAINS = ("amazon", "caltech", "dslr", "webcam")
SIDE = 256


def read(folder: Path, options: DataOptions, seed: int) -> Dataset:
    """Colour images in [0, 1]; every domain gives the same fraction of each class to the test part."""
    refuse_unusable(options, "office", "image")
    listings = _listings(folder)
    labels = class_ids("office", [np.array(listing.labels) for listing in listings])
    splits = [hold_out(ids, options.test_fraction, seed) for ids in labels.parts]
    side = options.image_size or SIDE
    train, test = (
        Examples(
            decode(
                [listing.files[row] for listing, rows in zip(listings, splits, strict=True) for row in rows[part]],
                (3, side, side),
                options.limits,
            ),
            torch.from_numpy(np.concatenate([ids[rows[part]] for ids, rows in zip(labels.parts, splits, strict=True)])),
        )
        for part in (0, 1)
    )
    # The files are resized while they are decoded, and the papers feed plain pixels.
    finishing = dataclasses.replace(options, image_size=0, normalise="none")
    train_x, test_x, _ = prepare.images(train.x, test.x, finishing, seed)
    return Dataset(
        name="office",
        train=Examples(train_x, train.y),
        test=Examples(test_x, test.y),
        classes=labels.classes,
        class_names=labels.names,
        groups={"domain": np.repeat(np.arange(len(DOMAINS)), [len(kept) for kept, _ in splits])},
        group_names={"domain": DOMAINS},
        test_groups={"domain": np.repeat(np.arange(len(DOMAINS)), [len(held) for _, held in splits])},
    )


def files(folder: Path, options: DataOptions) -> list[Path]:
    """What `read` reads."""
    return [file for listing in _listings(folder) for file in listing.files]


def _listings(folder: Path) -> list[Listing]:
    missing = [domain for domain in DOMAINS if not (folder / domain).is_dir()]
    if missing:
        raise DataError(f"{folder} has no folder '{missing[0]}': expected {', '.join(DOMAINS)}")
    return [listed(folder / domain) for domain in DOMAINS]
