"""What the data of a federation are like, in numbers: its sites, their sizes, their labels, the network."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewfed import tree
from fewfed.data import skew
from fewfed.data.examples import Dataset
from fewfed.data.federation import Federation
from fewfed.runs.prepare import Prepared, split_of, training_part

FEW_ROWS = 50
"""A site with fewer rows has few: what SEM calls scarce."""
SKEWED = 0.1
"""Labels are skewed where this part of all rows would have to be of other classes, beyond what chance makes of it."""
_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Look:
    """What there is to train on, before anything is held back for validation."""

    data: str
    split: str
    task: str
    sites: int
    named: bool
    """Whether sites are the data's own, and not made by a split."""
    cohort: int
    """Sites a round."""
    rows: int
    test_rows: int
    smallest: int
    median: float
    largest: int
    holders: int
    """The fewest sites that hold nine tenths of all rows."""
    classes: int
    """0 where a row has no class of its own."""
    mean_classes: float
    """That a site has."""
    lacking: int
    """Sites that lack a class."""
    below_classes: int
    """Sites with fewer rows than there are classes."""
    single_holder: tuple[str, ...]
    """Classes that one site alone has."""
    single_class: int
    """Sites whose rows are all of one class."""
    commonest: float
    """The part of all rows that are of the commonest class."""
    distance: float
    """The part of all rows that would have to be of other classes for all sites to be alike."""
    distance_by_chance: float
    """The same if rows were given to sites of these sizes at random."""
    numbers: int
    """That an input has."""
    network: str
    weights: int
    scaling: str
    """Whose means and deviations inputs are scaled by."""
    own_rows: bool
    """Whether the rows of single sites can be told apart where models are judged."""
    metric_at_sites: bool
    """Whether the metric is measured on the rows of single sites."""

    @property
    def can_judge_own(self) -> bool:
        """Whether models can be judged on the rows of single sites."""
        return self.own_rows and self.metric_at_sites

    @property
    def is_skewed(self) -> bool:
        return self.distance - self.distance_by_chance > SKEWED

    @property
    def is_mostly_one_site(self) -> bool:
        """Whether one of several sites holds more rows than all others together."""
        return self.sites > 2 and 2 * self.largest > self.rows

    @property
    def is_few(self) -> bool:
        return self.median < FEW_ROWS

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "is_skewed": self.is_skewed, "is_few": self.is_few,
                "is_mostly_one_site": self.is_mostly_one_site}  # fmt: skip


def look(prepared: Prepared, whole: Dataset) -> Look:
    """Look at the data of a run that holds rows back for validation: these are counted too."""
    job, experiment, federation = prepared.job, prepared.resolved.experiment, prepared.job.federation
    dataset = training_part(whole, experiment)
    split, names = split_of(dataset, experiment), dataset.split_names
    counts = split.counts(dataset.split_labels, len(names))
    sizes = skew.size_summary(counts)
    has_class = dataset.task == "classification"
    holders = (counts > 0).sum(0)
    largest_first = np.sort(counts.sum(1))[::-1].cumsum()
    return Look(
        data=dataset.name,
        split=experiment.split,
        task=dataset.task,
        sites=len(split),
        named=split.name in dataset.groups,
        cohort=prepared.cohort,
        rows=int(counts.sum()),
        test_rows=len(dataset.test),
        smallest=sizes.smallest,
        median=sizes.median,
        largest=sizes.largest,
        holders=int(np.searchsorted(largest_first, _NEARLY_ALL * counts.sum()) + 1),
        classes=len(names) if has_class else 0,
        mean_classes=skew.mean_classes(counts),
        lacking=int((counts == 0).any(1).sum()) if has_class else 0,
        below_classes=int((counts.sum(1) < len(names)).sum()) if has_class else 0,
        single_holder=tuple(names[each] for each in np.flatnonzero(holders == 1)) if has_class else (),
        single_class=int(((counts > 0).sum(1) == 1).sum()) if has_class else 0,
        commonest=float(counts.sum(0).max() / counts.sum()) if has_class else 0.0,
        distance=skew.distance(counts) if has_class else 0.0,
        distance_by_chance=skew.distance_by_chance(counts) if has_class else 0.0,
        numbers=int(np.prod(dataset.shape)),
        network=job.net.name,
        weights=sum(leaf.numel() for _, leaf in tree.leaves(job.net.model()["params"])),
        scaling=prepared.scaling.mode,
        own_rows=_knows_sites(federation.test_groups, federation)
        and _knows_sites(federation.validation_groups, federation),
        metric_at_sites=experiment.metric in _measured_at_sites(prepared),
    )


def _measured_at_sites(prepared: Prepared) -> Collection[str]:
    """The metrics of groups of rows, as the task's score of a row has them."""
    job = prepared.job
    y = job.federation.test.y[:1]
    return job.task.score(torch.zeros(1, job.task.outputs, *y.shape[1:]), y).compared.keys()


def _knows_sites(groups: Mapping[str, Tensor], federation: Federation) -> bool:
    """Whether groups of rows are those of the clients, and of nobody else: a test part may be that of other people."""
    return bool(groups) and groups.keys() <= set(federation.client_groups)
