"""The last steps between what a file holds and what a network is fed."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fewfed.data.readers.options import DataOptions
from fewfed.data.transforms import Scaling, crop_and_flip, resized

TRAIN_DRAWS, TEST_DRAWS = 1, 2


def images(
    train: Tensor, test: Tensor, options: DataOptions, seed: int, scaling: Scaling | None = None
) -> tuple[Tensor, Tensor]:
    """Resize, augment in pixel space (so that padding is black), then normalise with the plain training images."""
    if options.image_size:
        rows, side = len(train) + len(test), options.image_size
        options.limits.check_total(f"{rows} images of {side} x {side} pixels", 4 * rows * train.shape[1] * side**2)
        train, test = resized(train, options.image_size), resized(test, options.image_size)
    if options.normalise and scaling is None:
        scaling = Scaling.of(train)
    if options.augment == "static":
        train = crop_and_flip(train, np.random.default_rng((seed, TRAIN_DRAWS)))
        if options.augment_test:
            test = crop_and_flip(test, np.random.default_rng((seed, TEST_DRAWS)))
    return arrays(train, test, scaling if options.normalise else None)


def arrays(train: Tensor, test: Tensor, scaling: Scaling | None) -> tuple[Tensor, Tensor]:
    """Both parts scaled the same way, or left alone."""
    return (train, test) if scaling is None else (scaling.apply(train), scaling.apply(test))
