"""A blank client: rows of zeros, no step. It shows what a client of a phase would hand over, before anybody trains."""

from __future__ import annotations

import dataclasses

import torch

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.engine.job import Job
from fewfed.engine.threads import one_thread
from fewfed.engine.turn import Member, context_with
from fewfed.method import Report
from fewfed.phase import Clock, Phase
from fewfed.tree import Tree

ROWS = 8


def blank_report(
    job: Job, phase: Phase, clock: Clock, shared: Tree, personal: Tree, client: int, state: Tree, rows: int = ROWS
) -> Report:
    """What a client of blank rows reports without having trained."""
    shape = tuple(job.federation.shape)
    data = Examples(torch.zeros(rows, *shape, dtype=job.net.dtype), job.task.blank_labels(rows, shape))
    return untrained_report(job, phase, clock, shared, Member(client, personal, state), data)


def untrained_report(job: Job, phase: Phase, clock: Clock, shared: Tree, member: Member, data: Examples) -> Report:
    """What a client with these rows reports without a step. It works on copies: nobody checks what it changes."""
    shared = tree.clone(shared)
    member = Member(member.client, tree.clone(member.personal), tree.clone(member.state))
    counts = torch.bincount(data.y, minlength=job.task.classes) if job.task.classes else torch.zeros(0)
    ctx = context_with(job, phase, clock, data, counts, shared, member)
    ctx = dataclasses.replace(ctx, steps=1)
    with one_thread():
        work = phase.does.begin(ctx)
        with torch.no_grad():
            return phase.does.end(work, ctx)
