"""What a comparison came to: its results, its table, and which runs failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewfed.engine import storage
from fewfed.report.curves import plot_curves
from fewfed.report.notebook import picture
from fewfed.report.rendering import as_html, as_text
from fewfed.report.table import Row, Spread, rich_table, rows, to_csv
from fewfed.runs.cells import Update
from fewfed.runs.comparison import Planned
from fewfed.runs.results import Result, joined_notes

if TYPE_CHECKING:
    from fewfed.report.page.write import Written

TABLE, PICTURE = "table.csv", "curves.png"


@dataclass(frozen=True)
class Comparison:
    """Several methods over the same seeds. Prints as a table, in a notebook too."""

    folder: Path
    named: tuple[tuple[str, Result], ...]
    """The finished runs, each with what its method is called in the table."""
    failed: Mapping[str, str]
    """Runs that failed, by the names of their folders, and why."""

    @property
    def results(self) -> list[Result]:
        """The finished runs, by method and seed."""
        return [result for _, result in self.named]

    @property
    def rows(self) -> list[Row]:
        """One row a method, over its seeds."""
        return rows(self.named)

    @property
    def table(self) -> list[dict[str, Any]]:
        """The same as plain values, which pandas takes: `pandas.DataFrame(comparison.table)`. Accuracies are fractions,
        deviations None where there is one seed."""
        return plain(self.rows)

    @property
    def title(self) -> str:
        first = self.results[0]
        return f"{first.data}, {first.split}, {first.clients} clients, {first.rounds} rounds"

    @property
    def notes(self) -> str:
        """What is said about data and splits."""
        return joined_notes(result.note for result in self.results)

    def write(self) -> None:
        """Write the table into the folder."""
        storage.write(self.folder / TABLE, to_csv(self.rows).encode())

    def report(self, baseline: str = "") -> Written:
        """Write a page about these runs into the folder: `fewfed report`."""
        from fewfed.report.page.write import PAGE, write_report

        return write_report([Path(result.folder) for result in self.results], self.folder / PAGE, baseline=baseline)

    def plot(self) -> Path:
        """Draw accuracy by round into the folder; where the picture lies."""
        folders = {label: [Path(each.folder) for each in results] for label, results in self._by_label().items()}
        plot_curves(folders, self.folder / PICTURE, self.title)
        return self.folder / PICTURE

    def __str__(self) -> str:
        return as_text(rich_table(self.rows, self.title) if self.named else None, self._lines())

    def _repr_html_(self) -> str:
        """For notebooks."""
        table = [{name: value for name, value in row.items() if name != "note"} for row in self.table]
        return as_html(table, self.title if table else "", self._lines()) + picture(self._by_label())

    def _by_label(self) -> dict[str, list[Result]]:
        """The runs of each method, by what it is called in the table."""
        found: dict[str, list[Result]] = {}
        for label, result in self.named:
            found.setdefault(label, []).append(result)
        return found

    def _lines(self) -> list[str]:
        notes = [f"data: {self.notes}"] if self.notes else []
        return [*notes, *(f"failed: {name}: {' '.join(why.split())}" for name, why in self.failed.items())]


def compared(runs: Planned, endings: Sequence[Update]) -> Comparison:
    """What the runs of a comparison came to. The table is written into its folder."""
    named = [(runs.labels[each.cell.resolved.spec], each.result) for each in endings if each.result is not None]
    failed = {each.cell.name: each.error for each in endings if each.error}
    comparison = Comparison(runs.root, tuple(named), failed)
    if named:
        comparison.write()
    return comparison


def plain(table: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as plain values: a spread is two columns, and one that no row has is left out."""
    names = [field.name for field in fields(Row)]
    spread = {name for name in names if any(isinstance(getattr(row, name), Spread) for row in table)}
    found = []
    for row in table:
        values: dict[str, Any] = {}
        for name in names:
            value = getattr(row, name)
            if name in spread:
                values[f"{name}_mean"] = value.mean if value else None
                values[f"{name}_sd"] = value.deviation if value and row.seeds > 1 else None
            elif value is not None:
                values[name] = value
        found.append(values)
    return found
