"""What a search came to: every setting that was tried, what was chosen, and the comparison that follows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fewfed.engine import storage
from fewfed.metric import metric_of
from fewfed.report.comparison import Comparison
from fewfed.report.rendering import as_html, as_text
from fewfed.report.spreadsheet import as_csv
from fewfed.runs.naming import labels_of
from fewfed.runs.tuning import Search, Tried, best

if TYPE_CHECKING:
    from rich.table import Table

TRIALS = "search.csv"
CHOSEN = "chosen.json"
_NAMES = {"best": "best", "last": "last", "last10": "last 10"}


@dataclass(frozen=True)
class Tuned:
    """Several methods, each with the setting of its own that was best on the validation rows."""

    search: Search
    tried: tuple[Tried, ...]
    comparison: Comparison
    """Of the chosen settings, on the test part."""

    @property
    def chosen(self) -> dict[str, dict[str, Any]]:
        """The setting of each method."""
        return chosen_of(self.search, self.tried)

    @property
    def trials(self) -> list[dict[str, Any]]:
        """One row a trial, which pandas takes."""
        return trials_of(self.search, self.tried)

    def __str__(self) -> str:
        return "\n\n".join((as_text(search_table(self.search, self.tried), [told(self.search)]), str(self.comparison)))

    def _repr_html_(self) -> str:
        """For notebooks."""
        return as_html(self.trials, "search", [told(self.search)]) + "\n" + self.comparison._repr_html_()


def told(search: Search) -> str:
    """How the search is done, in words."""
    counts = {spec: len(search.of(spec)) for spec in search.methods}
    seeds = len(search.trials[0].runs.cells)
    same = len(set(counts.values())) == 1
    each = ", ".join(f"{count} of {spec}" for spec, count in counts.items())
    budget = f"{next(iter(counts.values()))} settings of each method" if same else f"settings tried: {each}"
    return (
        f"{budget}, {seeds} seed{'s' if seeds > 1 else ''} each, judged by {_NAMES[search.by]} on "
        f"{search.validation:.0%} of every client's rows, on which nobody trains meanwhile; the test part is used for "
        "what is chosen alone"
    )


def chosen_of(search: Search, tried: Sequence[Tried]) -> dict[str, dict[str, Any]]:
    """The best setting of each method, by what the method is called in a table."""
    labels = labels_of(search.methods)
    return {labels[spec]: dict(best(spec, tried).trial.values) for spec in search.methods}


def trials_of(search: Search, tried: Sequence[Tried]) -> list[dict[str, Any]]:
    """One row a trial: method, setting, score on the validation rows, and whether it was chosen."""
    labels = labels_of(search.methods)
    taken = [best(spec, tried) for spec in search.methods]
    return [
        {
            "method": labels[each.trial.spec],
            "setting": setting(each.trial.values),
            "validation": each.score,
            "seeds": len(each.results),
            "chosen": any(each is one for one in taken),
        }
        for each in tried
    ]


def setting(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items()) or "as it is"


def search_table(search: Search, tried: Sequence[Tried]) -> Table:
    """Every trial, the chosen ones in bold."""
    from rich import box
    from rich.table import Table

    metric = metric_of(next(result.metric for each in tried for result in each.results))
    made = Table(title="search", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in ("method", "setting"):
        made.add_column(column, overflow="fold")
    made.add_column(f"validation {metric.title}, {_NAMES[search.by]}", justify="right")
    for row in trials_of(search, tried):
        score = "failed" if row["validation"] is None else metric.shown(row["validation"])
        made.add_row(row["method"], row["setting"], score, style="bold" if row["chosen"] else "")
    return made


def write(search: Search, tried: Sequence[Tried]) -> None:
    """The trials and what is chosen, as files in the folder of the search."""
    rows = trials_of(search, tried)
    storage.write(search.root / TRIALS, as_csv(list(rows[0]), rows).encode())
    storage.write(search.root / CHOSEN, (json.dumps(chosen_of(search, tried), indent=1) + "\n").encode())
