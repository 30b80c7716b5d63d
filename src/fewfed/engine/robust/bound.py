"""How long a change may be, as a user writes it: a number, or so many times the median of the round's."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fewfed.errors import ConfigError

_TIMES = re.compile(r"\s*([0-9.eE+-]+)\s*(x?)\s*")


@dataclass(frozen=True)
class Bound:
    """The largest length of a change."""

    value: float
    is_relative: bool = True
    """Whether `value` counts medians of the lengths that a cohort sent."""

    def of(self, lengths: Sequence[float]) -> float:
        """The bound for a cohort of such lengths. Of an even count the smaller of the middle two: with two clients, a
        long one then cannot excuse itself."""
        return self.value * sorted(lengths)[(len(lengths) - 1) // 2] if self.is_relative else self.value

    def __str__(self) -> str:
        return f"{self.value:g} times the median" if self.is_relative else f"{self.value:g}"


MEDIAN = Bound(1.0)
"""As long as the change of the client in the middle."""


def bound_of(text: str, key: str) -> Bound:
    """Read `3x` (three times the median) or `3` (a length)."""
    found = _TIMES.fullmatch(text)
    try:
        value = float(found[1]) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or not 0 < value < math.inf:
        raise ConfigError(
            f"{key} = '{text:.60}': expected a length above 0, as in 2.5, or so many medians of the round's lengths, "
            "as in 3x",
            key=key,
            value=text,
        )
    return Bound(value, is_relative=bool(found[2]))
