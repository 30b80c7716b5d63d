"""Stand-in clients: random rows in place of anybody's data, so that a method can be tried out before there is any."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.job import Job
from fewfed.phase import Role, Upload
from fewfed.tree import Tree

ROWS = 40
"""Of each stand-in: so many that a share of them is at least one."""
_NEVER_NEGATIVE = (Role.COUNTS, Role.SCORE, Role.STATISTICS, Role.LABELS)
_CLASSES = 3
"""Classes of a stand-in's rows: few, so that it has several rows of each."""


def with_stand_ins(job: Job, rows: int = ROWS) -> Job:
    """The same job with as many clients, none of whom has a row of anybody."""
    shape = tuple(job.federation.shape)

    def make(client: int) -> Examples:
        random = torch.Generator().manual_seed(client)
        x = torch.randn(rows, *shape, generator=random, dtype=torch.float64).to(job.net.dtype)
        return Examples(x, _labels(job, rows, random))

    test = Examples(torch.zeros(1, *shape, dtype=job.net.dtype), job.task.blank_labels(1, shape))
    federation = GeneratedFederation(len(job.federation), make, test, job.task.classes, rows)
    return dataclasses.replace(job, federation=federation)


def _labels(job: Job, rows: int, random: torch.Generator) -> Tensor:
    like = job.task.blank_labels(rows, tuple(job.federation.shape))
    if like.is_floating_point():
        return torch.randn(like.shape, generator=random, dtype=torch.float64).to(like.dtype)
    return torch.randint(max(1, min(_CLASSES, job.task.outputs)), like.shape, generator=random).to(like.dtype)


def varied(upload: Upload, value: Tree, outputs: int, seed: int, strength: float = 0.01) -> Tree:
    """An upload with everything in it changed, a little or much, to the larger or (below 0) to the smaller: still one
    that a client could send."""
    random = torch.Generator().manual_seed(seed)
    return tree.map(lambda leaf: _varied(leaf, upload.role, outputs, random, strength), value)


def _varied(leaf: Tensor, role: Role, outputs: int, random: torch.Generator, strength: float) -> Tensor:
    single = leaf.dtype is torch.float32  # Large networks have many of them.
    drawn = torch.rand(leaf.shape, generator=random, dtype=torch.float32 if single else torch.float64)
    if leaf.dtype is torch.bool:
        return drawn < 0.5
    if leaf.is_floating_point():
        if role is Role.LABELS and outputs and leaf.dim() > 1:  # Shares of classes stay such.
            return leaf.roll(1 + int(3 * torch.rand((), generator=random)), dims=1)
        drawn = drawn if role in _NEVER_NEGATIVE else 2 * drawn - 1
        return (leaf.to(drawn.dtype) * (1 + strength * drawn) + 0.1 * abs(strength) * drawn).to(leaf.dtype)
    if role is Role.LABELS and outputs > 1:
        return ((leaf + 1 + (drawn * (outputs - 1)).long()) % outputs).to(leaf.dtype)
    return leaf + 1 + int(5 * torch.rand((), generator=random))
