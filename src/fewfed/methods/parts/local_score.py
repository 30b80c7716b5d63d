"""How well a client's own rows are predicted by the model it has just received."""

from __future__ import annotations

from fewfed.method import Context
from fewfed.task import Score

ROWS = 500
"""Rows scored at once, so that a large client does not need the memory of all its activations together."""


def local_score(ctx: Context) -> Score:
    """Score of the broadcast model on the client's own rows, in eval mode."""
    model, data = ctx.shared["model"], ctx.data
    scores = [
        ctx.task.score(
            ctx.net.apply(model, data.x[start : start + ROWS], train=False).cpu(), data.y[start : start + ROWS].cpu()
        )
        for start in range(0, ctx.size, ROWS)
    ]
    return sum(scores[1:], start=scores[0])
