"""Scores a model on held-out rows, in pieces that are the same in every executor, so that sums agree."""

from __future__ import annotations

import dataclasses
import math

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


def evaluate(
    job: Job, model: Tree, on: HeldOut = "test", first: int = 0, last: int | None = None, channels_last: bool = False
) -> Score:
    """Score a model on rows [first, last) of the test part or the validation rows, in eval mode."""
    held_out = rows_of(job, on)
    if channels_last:
        model = {**model, "params": layout.channels_last(model["params"])}
    rows, at_once = len(held_out) if last is None else last, evaluation_rows(job)
    total: Score | None = None
    with torch.no_grad():
        for start in range(first, rows, at_once):
            stop = min(start + at_once, rows)
            output = job.net.apply(model, asking.presented(job, model, held_out.x[start:stop]), train=False)
            score = scored(job, layout.plain(output) if channels_last else output, start, stop, on)
            total = score if total is None else total + score
    if total is None:
        raise ValueError(f"nothing to evaluate: there are no {on} rows")
    return total


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
        here = inside[start:stop]
        if bool(here.any()):
            groups[name] = job.task.score(output[here], y[here])
    return dataclasses.replace(score, groups=groups) if groups else score
