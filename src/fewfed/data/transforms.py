"""Pure transforms of whole parts: resizing and the one frozen augmentation."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

PADDING = 4


def resized(x: Tensor, size: int) -> Tensor:
    """Images scaled to `size` pixels a side, smoothed when they shrink."""
    if tuple(x.shape[-2:]) == (size, size):
        return x
    return F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False, antialias=True).clamp_(0, 1)


def crop_and_flip(x: Tensor, rng: np.random.Generator, padding: int = PADDING) -> Tensor:
    """Each image cropped at its own random place of a zero frame and mirrored with probability one half."""
    count, height, width = len(x), x.shape[-2], x.shape[-1]
    places = 2 * padding + 1
    draws = rng.integers(places * places, size=count)
    mirrored = torch.from_numpy(rng.random(count) < 0.5)
    framed = F.pad(x, (padding, padding, padding, padding))
    out = torch.empty_like(x)
    # Images that share an offset are cut together: at most 81 slices whatever the number of images.
    for offset in np.unique(draws).tolist():
        top, left = divmod(offset, places)
        rows = torch.from_numpy(np.flatnonzero(draws == offset))
        out[rows] = framed[rows, :, top : top + height, left : left + width]
    out[mirrored] = out[mirrored].flip(-1)
    return out
