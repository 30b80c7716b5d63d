"""Shared rows that stay for some rounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewfed.tree import Tree

AGE = "age"
"""The server's entry with the age of every row of a buffer, in rounds; never sent."""


def with_history(before: Tree, after: Tree, names: Sequence[str], rounds: int) -> Tree:
    """The server's tree in which rows that came less than `rounds` rounds ago stand behind the new ones."""
    if rounds == 1:
        return after
    new = torch.zeros_like(after[names[-1]], dtype=torch.long)
    if AGE not in before:
        return {**after, AGE: new}
    age = before[AGE] + 1
    young = age < rounds
    kept = {name: torch.cat([after[name], before[name][young]]) for name in names}
    return {**after, **kept, AGE: torch.cat([new, age[young]])}
