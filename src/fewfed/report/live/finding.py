"""Which runs, and which comparisons, lie below the folders that are watched, at this moment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fewfed.deploy.status import STATUS
from fewfed.errors import in_one_line
from fewfed.report.rendering import printable
from fewfed.report.survey import DEEPEST
from fewfed.runs.cells_file import CELLS
from fewfed.runs.folder import CONFIG, METRICS, RESULT

_RUN = (CONFIG, RESULT, METRICS, STATUS)
"""What makes a folder one of a run; a coordinator that waits for its sites has only the last."""
_MOST_FOLDERS = 20_000


@dataclass(frozen=True)
class Below:
    """What was found."""

    runs: tuple[Path, ...]
    comparisons: tuple[Path, ...]
    """Folders with a list of the runs they are to hold."""
    remarks: tuple[str, ...]
    """Where it was not possible to look."""


def look_below(folders: Sequence[Path]) -> Below:
    """All runs in these folders and below them, each once. Folders come and go: what is not there holds no run."""
    runs: dict[str, Path] = {}
    comparisons: dict[str, Path] = {}
    remarks: list[str] = []
    for folder in folders:
        for place, names in _folders(folder, remarks):
            if any(name in names for name in _RUN):
                runs.setdefault(os.path.realpath(place), place)
            elif CELLS in names:
                comparisons.setdefault(os.path.realpath(place), place)
    return Below(tuple(runs.values()), tuple(comparisons.values()), tuple(remarks))


def _folders(top: Path, remarks: list[str]) -> Iterator[tuple[Path, set[str]]]:
    """Every folder with the names in it, in the order of their names; not below runs. Hidden folders and links are
    passed by."""
    waiting = [(top, 0)]
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            return
        place, depth = waiting.pop()
        try:
            with os.scandir(place) as entries:
                found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else in_one_line(error)
            remarks.append(f"cannot look into '{printable(place)}': {why}")
            continue
        yield place, set(found)
        if depth < DEEPEST and not any(name in found for name in _RUN):
            below = sorted(
                (name for name, folder in found.items() if folder and not name.startswith(".")), reverse=True
            )
            waiting += [(place / name, depth + 1) for name in below]
    remarks.append(f"'{printable(top)}' holds more than {_MOST_FOLDERS} folders: name those of runs, to see them all")
