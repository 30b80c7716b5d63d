"""What is done about rows in which something is missing: refused, dropped, or filled in later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fewfed.data.readers.options import MissingRule
from fewfed.data.reading import MissingCells
from fewfed.errors import DataError

SHOWN = 80


@dataclass(frozen=True)
class Masks:
    """Where cells are missing, by column: in those that every row needs (label, site), and in the inputs."""

    where: str
    needed: Mapping[str, np.ndarray]
    inputs: Mapping[str, np.ndarray]

    def counted(self) -> tuple[MissingCells, ...]:
        both = {**self.needed, **self.inputs}
        return tuple(MissingCells(name, int(mask.sum())) for name, mask in both.items() if mask.any())


def rows_used(masks: Masks, rows: int, rule: MissingRule) -> np.ndarray:
    """Which rows are used: all but those without a label or a site, and those without an input if these are dropped.

    A mean can stand for an input, but for no label and no site.
    """
    _refuse_empty(masks)
    found = masks.counted()
    if found and rule == "refuse":
        raise _refused(masks, found)
    used = np.ones(rows, bool)
    for mask in (*masks.needed.values(), *(masks.inputs.values() if rule == "drop" else ())):
        used &= ~mask
    if not used.any():
        worst = max(found, key=lambda cells: cells.cells)
        raise DataError(
            f"{masks.where} has no row in which nothing is missing (in column '{worst.column[:SHOWN]}' {worst.cells} "
            f"of {rows} cells are): use --missing mean, or leave such columns out with --ignore"
        )
    return used


def refuse_lost_sites(masks: Masks, used: np.ndarray, column: str, sites: np.ndarray, rule: MissingRule) -> None:
    """Raise where dropping rows would take all that a site has."""
    known = ~masks.needed[column]
    lost = sorted(set(sites[known].tolist()) - set(sites[used].tolist()))
    if lost:
        rows = int((sites[known] == lost[0]).sum())
        advice = "use --missing mean, or leave the columns where much is missing out with --ignore"
        if rule == "mean":
            advice = "remove the site's rows, or fill in its labels"
        others = f", and {len(lost) - 1} other sites theirs" if len(lost) > 1 else ""
        raise DataError(
            f"{masks.where}: site '{str(lost[0])[:SHOWN]}' would lose all of its {rows} rows because something is "
            f"missing in each{others}: {advice}"
        )


def _refuse_empty(masks: Masks) -> None:
    for name, mask in {**masks.needed, **masks.inputs}.items():
        if bool(mask.all()):
            advice = "choose another one" if name in masks.needed else f"leave it out with --ignore '{name[:SHOWN]}'"
            raise DataError(f"{masks.where}, column '{name[:SHOWN]}' holds no value at all: {advice}")


def _refused(masks: Masks, found: tuple[MissingCells, ...]) -> DataError:
    first = found[0]
    cells = "one missing cell" if first.cells == 1 else f"{first.cells} missing cells"
    others = len(found) - 1
    also = f", and {others} other column{'s have' if others > 1 else ' has'} some" if others else ""
    advice = "--missing mean fills inputs in, --missing drop leaves such rows out, --ignore NAME a column"
    if all(cells.column in masks.needed for cells in found):
        advice = "--missing drop leaves such rows out"
    return DataError(
        f"{masks.where}, column '{first.column[:SHOWN]}' has {cells}{also}: expected a value in every row; {advice}"
    )
