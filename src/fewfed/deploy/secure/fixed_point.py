"""Numbers as whole numbers modulo 2^64, which can be summed under masks.

A number x becomes round(x · 2^bits). `bits` is as large as it can be so that the sum over all sites stays below 2^62,
given how large values and weights may be at most. A site whose value is beyond that does not take part in the sum; a
value is never cut off or wrapped around.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fewfed.errors import ConfigError

_ROOM = 62
"""The sum of all sites stays below 2^62 in absolute value: one bit is the sign's, one is for rounding."""
_MOST_BITS = 52
_LEAST_BITS = 8

Vector = NDArray[np.uint64]


class OutOfRange(Exception):
    """A number is larger than what was declared, or none at all."""


@dataclass(frozen=True)
class FixedPoint:
    """How one array, or the weight, is written as whole numbers."""

    bits: int
    """Digits behind the binary point; 0 for whole numbers, whose sum is exact."""
    bound: float
    """The largest absolute value of a number."""
    factor: float = 1.0
    """The largest weight that it is multiplied by."""

    @classmethod
    def fitting(cls, sites: int, bound: float, factor: float, what: str) -> FixedPoint:
        """As many digits as fit; `ConfigError` where that is too few to be of use."""
        if not (math.isfinite(bound) and bound > 0 and math.isfinite(factor) and factor > 0):
            raise ConfigError(f"the bound of {what} is {bound:g} times {factor:g}: expected finite numbers above 0")
        bits = min(_MOST_BITS, _ROOM - math.ceil(math.log2(sites) + math.log2(bound) + math.log2(factor)))
        if bits < _LEAST_BITS:
            raise ConfigError(
                f"the bound of {what}, {bound:g} times a weight of {factor:g} over {sites} sites, leaves {bits} binary "
                f"digits behind the point: expected at least {_LEAST_BITS}"
            )
        return cls(bits, bound, factor)

    @classmethod
    def whole(cls, sites: int, bound: float, most: int) -> FixedPoint:
        """For whole numbers whose type holds at most `most`: their sum must be one too."""
        return cls(0, float(math.floor(min(bound, most / sites, 2.0**_ROOM / sites))))

    def write(self, value: Tensor, weight: float, into: NDArray[np.int64], what: str) -> None:
        """Write weight · value as whole numbers; `OutOfRange` if one is beyond the bound."""
        flat = value.detach().cpu().reshape(-1)
        if not flat.numel():
            return
        lowest, highest = (float(each) for each in flat.aminmax())
        if not (-self.bound <= lowest and highest <= self.bound):  # Also false where one of them is NaN.
            largest = lowest if math.isnan(lowest) or -lowest > highest else highest
            raise OutOfRange(
                f"{what} has the number {largest:g}, which cannot be summed under masks: expected none beyond "
                f"{self.bound:g}; train so that numbers stay smaller"
            )
        if not flat.is_floating_point():
            into[:] = flat.to(torch.int64).numpy()
            return
        scaled = flat.to(torch.float64).numpy() * (weight * 2.0**self.bits)
        np.rint(scaled, out=scaled)
        into[:] = scaled.astype(np.int64)

    def read(self, total: NDArray[np.int64]) -> NDArray[np.float64]:
        """The sum that whole numbers stand for."""
        return total.astype(np.float64) * 2.0**-self.bits

    def error(self, sites: int) -> float:
        """By how much at most the whole numbers of so many sites differ, in sum, from what they stand for."""
        return sites * 2.0 ** -(self.bits + 1) if self.bits else 0.0

    def possible(self, total: NDArray[np.int64], share: float, sites: int) -> bool:
        """Whether such a sum can come from sites that kept to the bound, with a total weight of `share`."""
        if not total.size:
            return True
        most = share * self.bound * 2.0**self.bits
        return float(np.abs(total.astype(np.float64)).max()) <= most * (1 + 1e-9) + sites
