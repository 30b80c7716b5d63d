"""Rows that an attacker holds, and rows nobody trained on that are kept to judge it by."""

from __future__ import annotations

import torch
from torch import Tensor

from fewfed.data.examples import Examples


def halves(rows: Examples, seed: int) -> tuple[Examples, Examples]:
    """The attacker's half and the other one."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).to(rows.y.device)
    return rows.rows(order[: len(order) // 2]), rows.rows(order[len(order) // 2 :])


def matched(members: Examples, others: Examples, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers of as many members as others with the same classes: as many of each class as both have."""
    random = torch.Generator().manual_seed(seed)
    mine: list[Tensor] = []
    theirs: list[Tensor] = []
    groups = range(classes) if classes else [None]
    for label in groups:
        found = [
            torch.arange(len(rows)) if label is None else (rows.y.cpu() == label).nonzero().flatten()
            for rows in (members, others)
        ]
        count = min(len(found[0]), len(found[1]))
        for kept, numbers in ((mine, found[0]), (theirs, found[1])):
            kept.append(numbers[torch.randperm(len(numbers), generator=random)[:count]])
    # Whoever takes the first ones takes some of every class, as many of each on both sides.
    order = torch.randperm(sum(map(len, mine)), generator=random)
    return torch.cat(mine)[order], torch.cat(theirs)[order]
