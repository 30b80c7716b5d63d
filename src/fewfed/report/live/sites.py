"""The sites of a federation, as its coordinator last wrote them down."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fewfed.deploy.status import last_written, remarks_on
from fewfed.errors import RunError
from fewfed.report.live.progress import in_words
from fewfed.report.rendering import printable

_MOST_SITES = 2000


@dataclass(frozen=True)
class SiteRow:
    """One site."""

    name: str
    present: bool | None
    """Whether it is connected; None where the coordinator is gone and nobody knows."""
    rows: int | None
    mb_to: float
    mb_from: float
    accuracy: float | None
    strikes: int
    remarks: str


@dataclass(frozen=True)
class Federation:
    """A run between real sites."""

    folder: str
    state: str
    """In the coordinator's words; "its coordinator is gone" where no process holds the folder of a run on its way."""
    round: int
    rounds: int
    written: float
    """When the coordinator wrote this down, by the clock of its machine."""
    sites: tuple[SiteRow, ...]
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "written": in_words(max(0.0, time.time() - self.written))}


def federation_in(folder: Path, going_on: bool) -> Federation:
    """What a coordinator's folder tells. `going_on`: whether a process is at work there."""
    try:
        status = last_written(folder)
        state = printable(status["state"])
        gone = not going_on and state not in ("finished", "stopped")
        sites = [_site(name, site, going_on) for name, site in list(status["sites"].items())[:_MOST_SITES]]
        return Federation(
            str(folder),
            "its coordinator is gone" if gone else state,
            int(status["round"]),
            int(status["rounds"]),
            float(status["written"]),
            tuple(sites),
        )
    except (RunError, OSError) as error:
        problem = str(error)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        problem = f"its status is damaged ({type(error).__name__}): expected what 'fewfed serve' wrote"
    return Federation(str(folder), "damaged", 0, 0, 0.0, (), problem)


def _site(name: str, site: Any, going_on: bool) -> SiteRow:
    accuracy, rows = site["accuracy"], site["rows"]
    if accuracy is not None and not math.isfinite(accuracy):
        raise ValueError("no finite number")
    return SiteRow(
        printable(name),
        bool(site["present"]) if going_on else None,
        None if rows is None else int(rows),
        int(site["sent_bytes"]) / 1e6,
        int(site["received_bytes"]) / 1e6,
        None if accuracy is None else float(accuracy),
        int(site.get("strikes", 0)),
        printable(remarks_on(site)),
    )
