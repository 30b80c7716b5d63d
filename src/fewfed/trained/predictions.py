"""What a run's model says of new rows, and how right it is where the rows have labels."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewfed.data.readers.new_rows import NewRows
from fewfed.data.readers.roles import LABELS
from fewfed.errors import DataError, did_you_mean
from fewfed.runs.blueprint import Blueprint
from fewfed.trained.given import fitting, rows_in
from fewfed.trained.loading import Opened

UNKNOWN = -1


@dataclass(frozen=True)
class Scores:
    """How right predictions are, over the rows whose label the model knows."""

    rows: int
    accuracy: float
    balanced_accuracy: float
    """The mean over classes of the part of their rows that is right."""
    unknown: int = 0
    """Rows with a label that is none of the model's classes, which are not counted."""


@dataclass(frozen=True)
class Predictions:
    """Of every row of a file."""

    blueprint: Blueprint
    rows: NewRows
    probabilities: np.ndarray
    sites: Sequence[str] = ()
    """The site of each row, where each was predicted by its own site's model."""

    @property
    def names(self) -> tuple[str, ...]:
        return self.blueprint.class_names or tuple(map(str, range(self.blueprint.outputs)))

    @property
    def chosen(self) -> np.ndarray:
        """The number of the most probable class of each row, or of each pixel."""
        found: np.ndarray = self.probabilities.argmax(1)
        return found

    @property
    def counts(self) -> dict[str, int]:
        """How many rows each class was predicted for."""
        counted = Counter(self.chosen.ravel().tolist())
        return {name: counted[number] for number, name in enumerate(self.names)}

    def scores(self) -> Scores | None:
        """None where the rows have no labels."""
        cells = _labels(self.rows, self.blueprint) if self.blueprint.task == "classification" else None
        if cells is None:
            return None
        numbers = {name: number for number, name in enumerate(self.names)}
        truth = np.array([numbers.get(cell, numbers.get(cell.removesuffix(".0"), UNKNOWN)) for cell in cells])
        known = truth != UNKNOWN
        strange = sum(bool(cell) for cell in cells) - int(known.sum())
        if not known.any():
            return None
        right = (self.chosen == truth)[known]
        recalls = [float(right[truth[known] == number].mean()) for number in np.unique(truth[known])]
        return Scores(int(known.sum()), float(right.mean()), sum(recalls) / len(recalls), strange)

    def content(self, keep: Sequence[str] = ()) -> bytes:
        """A .csv file with a line for each row; of segmentation an .npz file with masks."""
        return self._masks() if self.blueprint.task == "segmentation" else self._csv(keep)

    def _csv(self, keep: Sequence[str]) -> bytes:
        kept = {name: self._column(name) for name in keep}
        first: Mapping[str, Sequence[Any]] = {"row": range(1, len(self.chosen) + 1)}
        if self.rows.names:
            first = {"file": self.rows.names}
        if self.sites:
            first = {**first, "site": self.sites}
        text = io.StringIO(newline="")
        out = csv.writer(text, lineterminator="\n")
        out.writerow([*first, *kept, "predicted", *(f"probability_{name}" for name in self.names)])
        for row, number in enumerate(self.chosen.tolist()):
            cells = [column[row] for column in (*first.values(), *kept.values())]
            out.writerow([*cells, self.names[number], *(f"{part:.6f}" for part in self.probabilities[row])])
        return text.getvalue().encode()

    def _column(self, name: str) -> Sequence[str]:
        """A column as the file has it."""
        if name in self.rows.columns:
            return self.rows.columns[name]
        has = did_you_mean("column", name, self.rows.columns) if self.rows.columns else "it has inputs only"
        raise DataError(f"the new data has no column '{name:.80}': {has}")

    def _masks(self) -> bytes:
        content = io.BytesIO()
        kind = np.uint8 if self.blueprint.outputs <= 256 else np.int64
        np.savez_compressed(content, masks=self.chosen.astype(kind), files=np.array(self.rows.names, dtype=str))
        return content.getvalue()


def predict(opened: Opened, path: Path, *, site: str | None = None, client: int | None = None) -> Predictions:
    """What a run's model says of the rows in a file or folder.

    Where each site has its own and none is named, every row is predicted by that of the site in its column.
    """
    blueprint = opened.blueprint
    by_column = blueprint.of_site and site is None and client is None
    rows = rows_in(path, blueprint, opened.options)
    x, sites = fitting(rows.x, blueprint), rows.sites
    if not by_column or not sites:
        return Predictions(blueprint, rows, opened.model(site, client).of_raw(x))
    found: np.ndarray | None = None
    for name in dict.fromkeys(sites):
        here = np.flatnonzero(np.array(sites) == name)
        if not name:
            raise DataError(f"row {here[0] + 1} has no site in column '{blueprint.site}': expected whose row it is")
        part = opened.model(name).of_raw(x[here])
        found = np.empty((len(x), *part.shape[1:])) if found is None else found
        found[here] = part
    assert found is not None
    return Predictions(blueprint, rows, found, sites)


def _labels(rows: NewRows, blueprint: Blueprint) -> Sequence[str] | None:
    """The label of each row as it is written, where the file has labels."""
    for name in [blueprint.label] if blueprint.label else LABELS:
        if name in rows.columns:
            return rows.columns[name]
    folders = [Path(name).parent.name for name in rows.names]
    return folders if folders and set(folders) <= set(blueprint.class_names) else None
