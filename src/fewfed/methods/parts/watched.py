"""What FLea's Fig. 9(b) shows: how much features depend on their inputs, over the last local epoch."""

from __future__ import annotations

import torch
from torch import Tensor

from fewfed.losses import unbiased_distance_correlation
from fewfed.method import Batch, Context
from fewfed.plan import Random
from fewfed.tree import Tree

LAST = "last"
LOGGED = frozenset({"correlation", "correlation_last_epoch", "unbiased_last_epoch"})


def last_epoch(random: Random, ctx: Context) -> Tree:
    """For a step's draw: the number of epochs in a step of the last one, 0 before, since times that the mean over all
    steps of a turn is the mean over those of the last epoch."""
    epochs = ctx.phase.epochs
    is_last = random.count() >= ctx.steps - ctx.steps // epochs
    return {LAST: torch.tensor(epochs if is_last else 0, dtype=ctx.dtype)}


def correlations(relation: Tensor, features: Tensor, batch: Batch) -> dict[str, Tensor]:
    """Terms to log of a step's correlation; those of the last epoch where the step's draw says which one that is."""
    relation = relation.detach()
    if LAST not in batch.drawn:
        return {"correlation": relation}
    last, unbiased = batch.drawn[LAST], unbiased_distance_correlation(batch.x, features.detach()).to(relation.dtype)
    return {
        "correlation": relation,
        "correlation_last_epoch": last * relation,
        "unbiased_last_epoch": last * unbiased,
    }
