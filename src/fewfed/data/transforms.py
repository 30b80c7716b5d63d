"""Pure transforms of whole parts: scaling, resizing and the one frozen augmentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

PADDING = 4
MANY_CHANNELS = 100_000


@dataclass(frozen=True)
class Scaling:
    """Mean and deviation of each channel, or of each column of a table."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, x: Tensor) -> Scaling:
        """Measured on rows; a channel that never changes keeps deviation 1."""
        channels = x.transpose(0, 1).flatten(1)
        # Channel by channel, because a double copy of a whole image set would not fit small machines; a file that is
        # all columns would take for ever that way.
        if len(channels) <= MANY_CHANNELS:
            mean = torch.stack([channel.double().mean() for channel in channels])
            std = torch.stack([channel.double().std(correction=0) for channel in channels])
        else:
            parts = torch.split(channels, MANY_CHANNELS)
            mean = torch.cat([part.double().mean(1) for part in parts])
            std = torch.cat([part.double().std(1, correction=0) for part in parts])
        # Rounding alone leaves a constant channel with a tiny deviation, which would blow its noise up.
        flat = std <= 1e-7 * mean.abs()
        return cls(mean.float(), torch.where(flat, torch.ones_like(std), std).float())

    @classmethod
    def published(cls, mean: Sequence[float], std: Sequence[float]) -> Scaling:
        return cls(torch.tensor(mean), torch.tensor(std))

    def apply(self, x: Tensor) -> Tensor:
        per_channel = (-1, *[1] * (x.ndim - 2))
        return (x - self.mean.view(per_channel)) / self.std.view(per_channel)


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
