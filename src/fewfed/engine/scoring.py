"""Scores a model on held-out rows, in pieces that are the same in every executor, so that sums agree."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.data.federation import HeldOut
from fewfed.engine import asking, layout
from fewfed.engine.job import Job
from fewfed.task import Score
from fewfed.tree import Tree

EVALUATION_ROWS = 500
EVALUATION_VALUES = EVALUATION_ROWS * 3 * 64 * 64
"""The most rows, and the most numbers in their inputs, that are scored at once."""


class Answered(NamedTuple):
    """What a model says of some of the rows it is scored on."""

    model: int
    """Which of the models that are scored, from 0."""
    first: int
    """The first of the rows."""
    output: Tensor
    """One answer a row, on the host."""


class Examined(NamedTuple):
    """A model that was scored in full."""

    score: Score
    sites: Mapping[int, Score]
    """The scores of the rows of single sites, by the sites' numbers."""
    whole: Mapping[str, Any]
    """What is no sum over parts of the rows (`Score.of_all_rows`)."""


def evaluate(
    job: Job, model: Tree, on: HeldOut = "test", first: int = 0, last: int | None = None, channels_last: bool = False
) -> Score:
    """Score a model on rows [first, last) of the test part or the validation rows, in eval mode."""
    total: Score | None = None
    for part in answers(job, model, on, first, last, channels_last):
        score = scored(job, part.output, part.first, part.first + len(part.output), on)
        total = score if total is None else total + score
    if total is None:
        raise ValueError(f"nothing to evaluate: there are no {on} rows")
    return total


def answers(
    job: Job,
    model: Tree,
    on: HeldOut = "test",
    first: int = 0,
    last: int | None = None,
    channels_last: bool = False,
    number: int = 0,
) -> Iterator[Answered]:
    """What a model says of the same rows, in pieces that are scored one by one. `number`: which model it is."""
    held_out = rows_of(job, on)
    if channels_last:
        model = {**model, "params": layout.channels_last(model["params"])}
    rows, at_once = len(held_out) if last is None else last, evaluation_rows(job)
    for start in range(first, rows, at_once):
        with torch.no_grad():
            x = held_out.x[start : min(start + at_once, rows)]
            output = job.net.apply(model, asking.presented(job, model, x), train=False)
        yield Answered(number, start, layout.plain(output) if channels_last else output)


def examined(
    job: Job, parts: Iterable[Answered], on: HeldOut = "test", sites: Callable[[int], Tensor] | None = None
) -> Iterator[Examined]:
    """For every model in turn its score, the same as `evaluate` finds, and what else its answers come to.

    `sites`: for each model, the number of each row's site; rows with -1 are of none that matters.
    """
    for number, mine in itertools.groupby(parts, key=lambda part: part.model):
        yield _examined(job, mine, on, None if sites is None else sites(number))


def _examined(job: Job, parts: Iterable[Answered], on: HeldOut, site_of: Tensor | None) -> Examined:
    task, y = job.task, rows_of(job, on).y
    keeps = task.score_type.needs_all_rows  # Masks of all images would fill the memory.
    scores: list[Score] = []
    said: list[Tensor] = []
    by_site: dict[int, Score] = {}
    for _, first, output in parts:
        last = first + len(output)
        scores.append(scored(job, output, first, last, on))
        said += [output] * keeps
        here = torch.empty(0) if site_of is None else site_of[first:last]
        for site in torch.unique(here).tolist():
            if site >= 0:
                rows = (here == site).nonzero().flatten()
                score = task.score(output[rows], y[first + rows])
                by_site[site] = by_site[site] + score if site in by_site else score
    whole = task.score_type.of_all_rows(torch.cat(said), y) if keeps else {}
    return Examined(sum(scores[1:], start=scores[0]), by_site, whole)


def evaluation_rows(job: Job) -> int:
    """Rows scored at once."""
    return max(1, min(EVALUATION_ROWS, EVALUATION_VALUES // max(1, math.prod(job.federation.shape))))


def rows_of(job: Job, on: HeldOut) -> Examples:
    """The rows that a model is scored on."""
    return job.federation.test if on == "test" else job.federation.validation


def scored(job: Job, output: Tensor, start: int, stop: int, on: HeldOut = "test") -> Score:
    """The score of rows [start, stop), and of every group that has some of them."""
    y = rows_of(job, on).y[start:stop]
    federation = job.federation
    score = job.task.score(output, y)
    groups: dict[str, Score] = {}
    for name, inside in (federation.test_groups if on == "test" else federation.validation_groups).items():
        here = inside[start:stop].nonzero().flatten()
        if len(here):
            groups[name] = job.task.score(output[here], y[here])
    return dataclasses.replace(score, groups=groups) if groups else score
