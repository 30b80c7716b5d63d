"""How much a data file may take: it comes from somebody else, and a small one can claim, or unpack to, anything."""

from __future__ import annotations

from dataclasses import dataclass

from fewfed.errors import DataError

MOST_BYTES = 16 << 30
MOST_RATIO = 200.0
FREE_BYTES = 64 << 20
"""Whatever takes no more than this is never too much for its file: tiny files of zeros are packed very small."""


@dataclass(frozen=True)
class Limits:
    """`most_bytes` of memory or disk in all, and at most `most_ratio` times what the file itself has."""

    most_bytes: int = MOST_BYTES
    most_ratio: float = MOST_RATIO

    def ceiling(self, stored: int) -> int:
        """What a file of `stored` bytes may unpack to."""
        return int(min(self.most_bytes, max(FREE_BYTES, self.most_ratio * stored)))

    def check_total(self, what: str, size: int) -> None:
        """Raise `DataError` where `size` bytes are too many, whatever they come from."""
        if size > self.most_bytes:
            raise DataError(
                f"{what} takes {readable(size)}: expected at most {readable(self.most_bytes)}; "
                "set most_bytes higher if you trust it"
            )

    def check(self, what: str, size: int, stored: int) -> None:
        """Raise `DataError` where `size` bytes are too many in all or for the `stored` bytes they are packed in."""
        self.check_total(what, size)
        if size > self.ceiling(stored):
            raise DataError(
                f"{what} takes {readable(size)} but is stored in {readable(stored)}: expected at most "
                f"{self.most_ratio:g} times as much; set most_ratio higher if you trust it"
            )


def readable(size: int) -> str:
    """A number of bytes for a sentence."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if size >= 1000**power:
            # Whole numbers: a claim may be larger than any floating point number.
            tenths = size * 10 // 1000**power
            return f"{tenths // 10}.{tenths % 10} {unit}" if tenths < 1000 else f"{_cut(tenths // 10)} {unit}"
    return f"{size} bytes"


def _cut(number: int) -> str:
    return str(number) if number < 10**12 else "over 10^12"
