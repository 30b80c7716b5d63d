"""What comes of answering without looking at a row, on the very rows that a bake-off is judged by."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import numpy as np

from fewfed.runs.cells import LoadedData
from fewfed.runs.experiment import Resolved
from fewfed.runs.prepare import parts_of, settled, training_part

METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "auc", "loss")
"""Those by which a guess can be judged. The best guess is perfectly calibrated, and masks have no class to guess."""


def guesses(first: Resolved, data: LoadedData, seeds: Iterable[int], own: bool) -> dict[int, float]:
    """By seed, the best that one and the same answer to every row comes to on the validation rows; nothing where the
    metric knows no such level. `first`: a run's configuration; `own`: in the mean over sites, of which each may also
    always answer the class that most of its own training rows have."""
    metric, found = first.experiment.metric, {}
    for seed in seeds if metric in METRICS else ():
        resolved = dataclasses.replace(first, experiment=dataclasses.replace(first.experiment, seed=seed))
        whole = data.of(resolved)
        experiment = settled(resolved, whole).experiment
        dataset = training_part(whole, experiment)
        split, held_back = parts_of(dataset, experiment)
        if dataset.task != "classification" or held_back is None:
            continue
        trained, judged = (each.counts(dataset.split_labels, dataset.classes) for each in (split, held_back))
        if not own:  # As if of one site.
            trained, judged = trained.sum(0, keepdims=True), judged.sum(0, keepdims=True)
        found[seed] = guess(trained, judged, metric)
    return found


def guess(trained: np.ndarray, judged: np.ndarray, metric: str) -> float:
    """In the mean over sites that have rows to be judged on. Both are rows of each class at each site."""
    there = judged.sum(1) > 0
    trained, judged = trained[there], judged[there]
    if metric == "auc":
        return 0.5
    if metric == "loss":  # The best for all sites is the mean of their shares, and its loss is their entropy.
        shares = (judged / judged.sum(1, keepdims=True)).mean(0)
        return float(-sum(share * math.log(share) for share in shares if share))
    each = np.stack([_scores(rows, metric) for rows in judged])
    most = trained.max(1, keepdims=True)
    commonest = (trained == most) & (most > 0)  # Of several that are as common, one at random.
    at_home = (each * commonest).sum(1) / commonest.sum(1).clip(min=1)
    return max(float(each.mean(0).max()), float(at_home.mean()))


def _scores(rows: np.ndarray, metric: str) -> np.ndarray:
    """What always answering each class comes to on rows of so many of each."""
    there = np.count_nonzero(rows)
    shares: np.ndarray = rows / rows.sum()
    if metric == "balanced_accuracy":
        shares = (rows > 0) / there
    if metric == "macro_f1":  # Over the classes that rows have and the one that is answered.
        shares = 2 * shares / (1 + shares) / (there + (rows == 0))
    return shares
