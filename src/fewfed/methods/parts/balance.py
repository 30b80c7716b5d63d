"""Rows of which every class has as many."""

from __future__ import annotations

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.plan import Random


def in_turn(labels: Tensor, count: int, random: Random) -> Tensor:
    """So many rows, drawn without repeats: classes take turns, and one that has no more rows is passed over."""
    order = random.permutation(len(labels))
    return order[_rank(classes_of(labels)[order]).argsort(stable=True)][:count]


def levelled(rows: Examples, random: Random) -> Examples:
    """Every class as often as the largest has rows: all rows of a class equally often, give or take once. Where there
    is no row at all, a blank one: something has to be trained on."""
    if not len(rows):
        return Examples(*(part.new_zeros(1, *part.shape[1:]) for part in (rows.x, rows.y)))
    classes = classes_of(rows.y)
    order, most = random.permutation(len(classes)), int(classes.bincount().max())
    parts = [order[classes[order] == label] for label in sorted(set(classes.tolist()))]
    chosen = torch.cat([part.repeat(-(-most // len(part)))[:most] for part in parts])
    return rows.rows(chosen.to(rows.y.device))


def classes_of(labels: Tensor) -> Tensor:
    """The class of each row; of labels that are shares of classes, the class with the largest."""
    return (labels.argmax(1) if labels.dim() > 1 else labels).long().cpu()


def one_of_each(rows: Tensor) -> Tensor:
    """A single number of each row."""
    return rows if rows.dim() == 1 else rows.flatten(1)[:, 0]


def _rank(classes: Tensor) -> Tensor:
    """How many rows of the same class stand before each."""
    order = classes.argsort(stable=True)
    count = classes.bincount()
    begins = (count.cumsum(0) - count)[classes[order]]
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - begins
    return rank
