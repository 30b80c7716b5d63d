"""The daemon of a site: it asks the line for parcels, lets the site answer them, and goes on until it is stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fewfed.deploy.site.site import Site
from fewfed.deploy.transport import Line


@dataclass(frozen=True)
class Pace:
    """Seconds between two looks for parcels: short while a run goes on, longer when nothing happens."""

    shortest: float = 0.05
    longest: float = 1.0
    busy: float = 10.0
    """So long after the last parcel it looks often."""


def serve(site: Site, line: Line, pace: Pace = Pace(), wanted: Callable[[], bool] = lambda: True) -> None:  # noqa: B008
    """Answer parcels as long as that is wanted."""
    last = time.monotonic()
    try:
        while wanted():
            delivery = line.receive()
            if delivery is None:
                idle = time.monotonic() - last
                time.sleep(pace.shortest if idle < pace.busy else min(pace.longest, pace.shortest + idle / 100))
                continue
            answer = site.answer(delivery.parcel)
            if answer is not None:
                delivery.answer(answer)
            last = time.monotonic()
    finally:
        line.close()
