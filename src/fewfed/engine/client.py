"""One client's turn: the only training loop of the project. Every executor that is not captured runs this."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.engine import layout
from fewfed.engine.job import PSEUDO_CLIENT, Done, Failed, Job, Member, Outcome
from fewfed.errors import FewfedError
from fewfed.method import Batch, Context
from fewfed.phase import Clock, Cohort, Phase
from fewfed.task import Score
from fewfed.tree import Tree

EVALUATION_ROWS = 500
EVALUATION_VALUES = EVALUATION_ROWS * 3 * 64 * 64
"""The most rows, and the most numbers in their inputs, that are scored at once."""


def run_member(
    job: Job, phase: Phase, clock: Clock, shared: Tree, member: Member, channels_last: bool = False
) -> Outcome:
    """A member's outcome; what goes wrong inside becomes a `Failed` that says where.

    `channels_last`: kernels lie so while the member trains; what comes out is laid out as ever, equal to rounding.
    """
    passes = job.net.channels_last() if channels_last else nullcontext()
    try:
        with network_draws(job, clock, phase, member.client), passes:
            return _turn(job, context_of(job, phase, clock, shared, member), channels_last and phase.epochs > 0)
    except FewfedError as error:
        return Failed(member.client, phase.name, str(error))
    except Exception as error:
        return Failed(member.client, phase.name, f"{type(error).__name__}: {error}")


@contextmanager
def network_draws(job: Job, clock: Clock, phase: Phase, client: int) -> Iterator[None]:
    """What a network draws for itself comes from the plan too, and leaves torch's own generator as it was."""
    if not (phase.epochs and job.net.draws):
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(job.plan.network_seed(clock.round, phase.name, client))
        yield


def evaluate(job: Job, model: Tree, first: int = 0, last: int | None = None, channels_last: bool = False) -> Score:
    """Score a model on rows [first, last) of the test part, in eval mode."""
    test = job.federation.test
    if channels_last:
        model = {**model, "params": layout.channels_last(model["params"])}
    rows, at_once = len(test) if last is None else last, evaluation_rows(job)
    total: Score | None = None
    with torch.no_grad():
        for start in range(first, rows, at_once):
            stop = min(start + at_once, rows)
            output = job.net.apply(model, test.x[start:stop], train=False)
            score = scored(job, layout.plain(output) if channels_last else output, start, stop)
            total = score if total is None else total + score
    if total is None:
        raise ValueError("nothing to evaluate: the test part is empty")
    return total


def evaluation_rows(job: Job) -> int:
    """Rows scored at once: the same in every executor, so that all add up the same numbers in the same order."""
    return max(1, min(EVALUATION_ROWS, EVALUATION_VALUES // max(1, math.prod(job.federation.shape))))


def scored(job: Job, output: Tensor, start: int, stop: int) -> Score:
    """The score of test rows [start, stop), and of every group that has some of them."""
    y = job.federation.test.y[start:stop]
    score = job.task.score(output, y)
    groups: dict[str, Score] = {}
    for name, members in job.federation.test_groups.items():
        here = members[start:stop]
        if bool(here.any()):
            groups[name] = job.task.score(output[here], y[here])
    return dataclasses.replace(score, groups=groups) if groups else score


def context_of(job: Job, phase: Phase, clock: Clock, shared: Tree, member: Member) -> Context:
    """What the method may look at for this member."""
    federation = job.federation
    training = job.training_of(phase)
    if member.client != PSEUDO_CLIENT:
        data = federation.examples(member.client)
        counts = federation.counts(member.client)
    elif phase.cohort is Cohort.UNION:
        data = federation.union()
        counts = torch.bincount(data.y, minlength=job.task.classes) if job.task.classes else torch.zeros(0)
    else:
        data = Examples(federation.test.x[:0], federation.test.y[:0])
        counts = torch.zeros(job.task.classes, dtype=torch.long)
    return Context(
        net=job.net,
        task=job.task,
        plan=dataclasses.replace(job.plan, batch=training.batch, rule=training.batch_rule, dtype=job.net.dtype),
        phase=phase,
        clock=clock,
        client=member.client,
        lr=training.lr_at(clock.round),
        shape=tuple(federation.shape),
        data=data,
        counts=counts,
        shared=shared,
        personal=member.personal,
        state=member.state,
    )


def _turn(job: Job, ctx: Context, channels_last: bool) -> Outcome:
    method, phase, clock = job.method, ctx.phase, ctx.clock
    if phase.cohort is not Cohort.SERVER and ctx.size == 0:
        return Failed(ctx.client, phase.name, "it has no samples: expected at least one")
    data = method.data(ctx)
    if phase.epochs and len(data) == 0:
        return Failed(ctx.client, phase.name, "there is nothing to train on: expected at least one row")
    batches = ctx.plan.batches(clock.round, phase.name, ctx.client, len(data), phase.epochs)
    ctx = dataclasses.replace(ctx, steps=len(batches))
    draws = ctx.plan.draws(clock.round, phase.name, ctx.client)

    work = method.begin(ctx)
    if channels_last:
        work = {**work, "params": layout.channels_last(work["params"])}
    for leaf in work.get("params", {}).values():
        leaf.requires_grad_(phase.epochs > 0)
    params = list(work.get("params", {}).values())
    optimizer = job.training_of(phase)
    memory = optimizer.init(params) if batches else None
    sums: dict[str, Tensor] = {}
    x, y = data.x, data.y

    for rows in batches:
        drawn = method.draw(draws, ctx, len(rows))
        batch = Batch(x[rows], y[rows], drawn if x.device.type == "cpu" else tree.to(drawn, x.device))

        def differentiate(point: Tree, batch: Batch = batch) -> tuple[Tree, Tree]:
            terms = method.loss(point, ctx, batch)
            total = sum_terms(terms, method.observed)
            leaves = point["params"]
            grads = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
            return dict(zip(leaves, grads, strict=True)), {name: value.detach() for name, value in terms.items()}

        gradient, terms = method.gradient(differentiate, work, ctx, batch)
        assert memory is not None
        optimizer.step(params, list(gradient.values()), memory, ctx.lr)
        for name, value in terms.items():
            sums[name] = sums[name] + value if name in sums else value

    means = {name: float(value) / len(batches) for name, value in sums.items()}
    broken = [name for name, value in means.items() if value != value or value in (float("inf"), float("-inf"))]
    if broken:
        return Failed(
            ctx.client, phase.name, f"its loss term '{broken[0]}' became {means[broken[0]]}: try a smaller lr"
        )
    if batches and not bool(torch.isfinite(torch.stack(torch._foreach_norm(params)).sum())):
        return Failed(ctx.client, phase.name, "its parameters became NaN or infinite: try a smaller lr")
    for leaf in params:
        leaf.requires_grad_(False)
    if channels_last:
        work = {**work, "params": layout.in_reading_order(work["params"])}
    with torch.no_grad():
        report = method.end(work, ctx)
    if channels_last:
        upload, state = layout.in_reading_order(report.upload), layout.in_reading_order(report.state)
        report = report._replace(upload=upload, state=state)
    return Done(ctx.client, report.upload, report.state, report.weight, len(batches), means)


def sum_terms(terms: dict[str, Tensor], observed: frozenset[str]) -> Tensor:
    """What is minimised: the sum of all terms that are not only observed."""
    counted = [value for name, value in terms.items() if name not in observed]
    total = counted[0]
    for value in counted[1:]:
        total = total + value
    return total
