"""Buffers of shared rows: which rows a client shares, what is broadcast, and how long rows stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from fewfed.losses import mix, one_hot
from fewfed.method import Batch, Context
from fewfed.plan import Random
from fewfed.tree import Tree

AGE = "age"
"""The server's entry with the age of every row of a buffer, in rounds; never sent."""


def fixed_rows(ctx: Context, share: float) -> Tensor:
    """The rows a client shares, the same in every round: a fraction of them, and at least one unless that is 0."""
    count = max(1, int(share * ctx.size)) if share else 0
    return ctx.plan.fixed(ctx.client, "shared rows").choice(ctx.size, count, replace=False)


def model_and_buffer(server: Tree, names: Sequence[str]) -> Tree:
    """What is broadcast: the model, and the buffer where it has any rows."""
    filled = names if len(server.get(names[-1], ())) else ()
    return {name: server[name] for name in ("model", *filled)}


def partners(random: Random, ctx: Context, size: int, pairing: Literal["cycle", "truncate"], beta: float) -> Tree:
    """Rows of the buffer for those of a batch, and how each two are mixed; nothing where the buffer is empty."""
    if (count := len(ctx.shared.get("labels", ()))) == 0:
        return {}
    row = random.cycle(count, size) if pairing == "cycle" else random.loader(count, ctx.plan.batch)[:size]
    return {"row": row, "lam": random.beta(beta, len(row))}


def mixed_with_buffer(features: Tensor, target: Tensor, ctx: Context, batch: Batch) -> tuple[Tensor, Tensor]:
    """Features and soft labels of a batch, row by row mixed with those of the buffer that were drawn for it."""
    row, lam = batch.drawn["row"], batch.drawn["lam"]
    theirs = one_hot(ctx.shared["labels"][row], ctx.task.classes)
    return mix(lam, features[: len(row)], ctx.shared["features"][row]), mix(lam, target[: len(row)], theirs)


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
