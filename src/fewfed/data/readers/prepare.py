"""The last steps between what a file holds and what clients scale and train on."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fewfed.data.readers.options import DataOptions
from fewfed.data.scaling import Scaling
from fewfed.data.transforms import crop_and_flip, resized

TRAIN_DRAWS, TEST_DRAWS = 1, 2


def images(
    train: Tensor, test: Tensor, options: DataOptions, seed: int, published: Scaling | None = None
) -> tuple[Tensor, Tensor, Scaling | None]:
    """Resize, and augment in pixel space (so that padding is black); constants of the plain training images."""
    if options.image_size:
        rows, side = len(train) + len(test), options.image_size
        options.limits.check_total(f"{rows} images of {side} x {side} pixels", 4 * rows * train.shape[1] * side**2)
        train, test = resized(train, options.image_size), resized(test, options.image_size)
    scaling = constants(train, options, published)
    if options.augment == "static":
        train = crop_and_flip(train, np.random.default_rng((seed, TRAIN_DRAWS)))
        if options.augment_test:
            test = crop_and_flip(test, np.random.default_rng((seed, TEST_DRAWS)))
    return train, test, scaling


def constants(train: Tensor, options: DataOptions, published: Scaling | None = None) -> Scaling | None:
    """What the published constants are, or those of all training rows; None where nobody will ask for them."""
    match options.normalise:
        case "auto":
            return published or Scaling.of(train)
        case "fixed":
            return published
        case "pooled":
            return Scaling.of(train)
    return None
