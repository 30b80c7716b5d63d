"""scikit-learn's 1 797 hand-written digits, 8 x 8: the one real set that is always there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from fewfed.data.examples import Dataset, Examples
from fewfed.data.readers import prepare
from fewfed.data.readers.holdout import hold_out
from fewfed.data.readers.options import DataOptions, refuse_unusable

SPLIT_SEED = 0
TEST_FRACTION = 0.2


def files(folder: Path, options: DataOptions) -> list[Path]:
    """None of the user's: the digits are inside a package."""
    return []


def read(folder: Path, options: DataOptions, seed: int) -> Dataset:
    """One fixed stratified split whatever the seed, so that all runs share their test digits."""
    from sklearn.datasets import load_digits

    refuse_unusable(options, "digits", "image")
    bunch = load_digits()
    x = torch.from_numpy(np.asarray(bunch.images, dtype=np.float32) / 16).unsqueeze(1)
    y = np.asarray(bunch.target, dtype=np.int64)
    kept, held = (torch.from_numpy(rows) for rows in hold_out(y, TEST_FRACTION, SPLIT_SEED))
    labels = torch.from_numpy(y)
    train_x, test_x, scaling = prepare.images(x[kept], x[held], options, seed)
    return Dataset(
        name="digits",
        train=Examples(train_x, labels[kept]),
        test=Examples(test_x, labels[held]),
        classes=10,
        class_names=tuple(str(digit) for digit in range(10)),
        scaling=scaling,
    )
