"""How a user's own files were read, told before anything is done with them."""

from __future__ import annotations

from fewfed.cli.printing import warn
from fewfed.data.reading import Reading
from fewfed.report.reading import paragraph


def tell_reading(reading: Reading | None) -> None:
    """One paragraph on standard error; nothing for data sets known by name."""
    if reading is not None:
        warn(paragraph(reading))
