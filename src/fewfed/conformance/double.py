"""Jobs in double precision, where executors can be told to agree: what is left of a difference there is no rounding.

In single precision a ReLU or a tiny BatchNorm batch magnifies rounding without bound, so agreement cannot be told from
its absence there.
"""

from __future__ import annotations

import dataclasses

import torch

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.job import Job
from fewfed.tree import Tree

EXACT = 1e-9
"""How far apart executors may be."""


def in_double(job: Job) -> Job:
    """The same job in double precision."""
    whole = job.federation
    test = Examples(whole.test.x.double(), whole.test.y)

    def make(client: int) -> Examples:
        own = whole.examples(client)
        return Examples(own.x.double(), own.y)

    federation = GeneratedFederation(len(whole), make, test, whole.classes)
    return dataclasses.replace(job, net=job.net.to(torch.float64), federation=federation)


def gap(left: Tree, right: Tree) -> float:
    """The largest difference of two trees; infinite where they do not have the same names and shapes."""
    ours, theirs = dict(tree.leaves(left)), dict(tree.leaves(right))
    if ours.keys() != theirs.keys() or any(ours[name].shape != theirs[name].shape for name in ours):
        return float("inf")
    gaps = (float((ours[name].double() - theirs[name].double()).abs().max()) for name in ours if ours[name].numel())
    return max(gaps, default=0.0)
