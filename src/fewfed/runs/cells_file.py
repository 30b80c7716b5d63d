"""The file beside the run folders of a comparison that names them all, so that whoever looks knows what is to come."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from fewfed.engine.own_folder import OwnFolder
from fewfed.engine.storage import Damaged
from fewfed.errors import FewfedError
from fewfed.methods.registry import label_of
from fewfed.runs.seals import read_sealed, write_sealed

if TYPE_CHECKING:
    from fewfed.runs.cells import Cell

CELLS = "cells.json"


@dataclass(frozen=True)
class Listed:
    """A run that is or was to be made."""

    folder: str
    """From where the file lies."""
    method: str
    seed: int
    rounds: int


def write_cells(cells: Sequence[Cell]) -> None:
    """Name these runs, in their order, in the folder they have in common. Where that cannot be written, runs go on."""
    if not cells:
        return
    root = Path(os.path.commonpath([cell.folder.parent for cell in cells]))
    listed = [
        Listed(
            cell.folder.relative_to(root).as_posix(),
            label_of(cell.resolved.spec),
            cell.resolved.experiment.seed,
            cell.resolved.experiment.rounds,
        )
        for cell in cells
    ]
    with contextlib.suppress(FewfedError, OSError):
        folder = OwnFolder(root)
        folder.make()
        write_sealed(folder / CELLS, {"cells": [asdict(one) for one in listed]})


def read_cells(root: Path) -> list[Listed]:
    """The runs that were last asked for in a folder, in their order; `Damaged` where the file is not as written."""
    found, _ = read_sealed(OwnFolder(root) / CELLS)
    cells = found.get("cells")
    if not isinstance(cells, list):
        raise Damaged(f"'{root / CELLS}' is damaged: it names no runs")
    return [_listed(cell, root) for cell in cells]


def _listed(cell: Any, root: Path) -> Listed:
    try:
        listed = Listed(**cell)
        parts = PurePosixPath(listed.folder).parts
        whole = all(isinstance(number, int) and number >= 0 for number in (listed.seed, listed.rounds))
        if whole and isinstance(listed.method, str) and parts and ".." not in parts and parts[0] != "/":
            return listed
    except TypeError:
        pass
    raise Damaged(f"'{root / CELLS}' is damaged: expected folders below it, with method, seed and rounds")
