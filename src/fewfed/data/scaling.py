"""Constants that scale inputs, and what stands in for values that are missing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfed.errors import DataError

MANY_CHANNELS = 100_000


@dataclass(frozen=True)
class Scaling:
    """Mean and deviation of each channel, or of each column of a table."""

    mean: Tensor
    std: Tensor
    fill: Tensor | None = None
    """What stands in for a missing value (NaN), before scaling; None where nothing may be missing."""
    published: bool = False
    """Whether these are constants that somebody published, so that no row had to be looked at."""

    @classmethod
    def of(cls, x: Tensor) -> Scaling:
        """Measured on rows, without missing values; a channel that never changes keeps deviation 1."""
        channels = x.transpose(0, 1).flatten(1)
        if bool(torch.isnan(x).any()):
            return cls._of_present(channels)
        # Channel by channel, because a double copy of a whole image set would not fit small machines; a file that is
        # all columns would take for ever that way.
        if len(channels) <= MANY_CHANNELS:
            mean = torch.stack([channel.double().mean() for channel in channels])
            std = torch.stack([channel.double().std(correction=0) for channel in channels])
        else:
            parts = torch.split(channels, MANY_CHANNELS)
            mean = torch.cat([part.double().mean(1) for part in parts])
            std = torch.cat([part.double().std(1, correction=0) for part in parts])
        return cls.from_moments(mean, std)

    @classmethod
    def _of_present(cls, channels: Tensor) -> Scaling:
        there = ~torch.isnan(channels)
        count = there.sum(1).clamp(min=1)
        mean = channels.nan_to_num(0.0).double().sum(1) / count
        off = torch.where(there, channels.double() - mean.unsqueeze(1), torch.zeros((), dtype=torch.float64))
        made = cls.from_moments(mean, (off.square().sum(1) / count).sqrt())
        return cls(made.mean, made.std, made.mean)

    @classmethod
    def from_moments(cls, mean: Tensor, std: Tensor, fills: bool = False) -> Scaling:
        """From means and deviations in double precision. `fills`: missing values become the mean."""
        # Rounding alone leaves a constant channel with a tiny deviation, which would blow its noise up.
        flat = std <= 1e-7 * mean.abs()
        middle = mean.float()
        return cls(middle, torch.where(flat, torch.ones_like(std), std).float(), middle if fills else None)

    @classmethod
    def constants(cls, mean: Sequence[float], std: Sequence[float], published: bool = True) -> Scaling:
        return cls(torch.tensor(mean), torch.tensor(std), published=published)

    def only_filling(self) -> Scaling:
        """The same for missing values, and everything else left as it is."""
        return Scaling(torch.zeros_like(self.mean), torch.ones_like(self.std), self.fill)

    def apply(self, x: Tensor) -> Tensor:
        per_channel = (-1, *[1] * (x.ndim - 2))
        if self.fill is not None:
            x = torch.where(torch.isnan(x), self.fill.view(per_channel), x)
        return (x - self.mean.view(per_channel)) / self.std.view(per_channel)

    def as_json(self) -> dict[str, Any]:
        fill = None if self.fill is None else self.fill.tolist()
        return {"mean": self.mean.tolist(), "std": self.std.tolist(), "fill": fill, "published": self.published}

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Scaling:
        """The constants that `as_json` wrote, bit for bit."""
        try:
            mean, std = (torch.tensor(recorded[name], dtype=torch.float32) for name in ("mean", "std"))
            fill = None if recorded["fill"] is None else torch.tensor(recorded["fill"], dtype=torch.float32)
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise _damaged(str(error)) from error
        found = [mean, std, *([] if fill is None else [fill])]
        if any(each.ndim != 1 or len(each) != len(mean) for each in found):
            raise _damaged("their numbers differ")
        if not all(math.isfinite(value) for each in found for value in each.tolist()) or bool((std <= 0).any()):
            raise _damaged("not all of them are finite, and deviations above 0")
        return cls(mean, std, fill, recorded.get("published") is True)


def _damaged(what: str) -> DataError:
    return DataError(f"the constants that scale inputs are damaged ({what}): expected what 'fewfed run' wrote")
