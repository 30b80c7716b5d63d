"""One client's turn in a phase: begin, take the steps, end. Used by every executor that does not record steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.engine import answers, gate, layout
from fewfed.engine.gate import LeftOut
from fewfed.engine.job import PSEUDO_CLIENT, Job
from fewfed.engine.optimizer import LocalOptimizer
from fewfed.engine.outcomes import Failed, Finished
from fewfed.engine.packet import BadPacket, packet_of
from fewfed.engine.step import Step
from fewfed.engine.varied import Rows, seen, unseen
from fewfed.errors import FewfedError, told
from fewfed.method import Batch, Context, Report
from fewfed.phase import Clock, Cohort, Phase
from fewfed.torch_private import foreach_norm
from fewfed.tree import Tree


@dataclass(frozen=True)
class Member:
    """A client that takes part in a phase: what it alone receives, and what it remembers."""

    client: int
    personal: Tree = field(default_factory=dict)
    state: Tree = field(default_factory=dict)
    moments: Tree = field(default_factory=dict)
    """Of its optimiser in this phase, where they stay from round to round; not for the method."""
    book: Tree = field(default_factory=dict)
    """What its gates have noted of what left it before; not for the method either."""


class CannotTrain(Exception):
    """A client cannot train, or its training gave no usable numbers; the message says why."""


def run_turn(
    job: Job, phase: Phase, clock: Clock, shared: Tree, member: Member, channels_last: bool = False
) -> Finished | Failed:
    """Run a member's turn. An error inside becomes a `Failed` with its reason.

    `channels_last`: kernels of convolutions are stored in that memory order during the turn, which is faster for some
    networks and agrees to rounding. Results are in the usual order.
    """
    passes = job.net.channels_last() if channels_last else nullcontext()
    try:
        with network_randomness(job, clock, phase, member.client), passes:
            ctx = context_of(job, phase, clock, shared, member)
            return _turn(job, ctx, member, channels_last and phase.epochs > 0)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # Also `sys.exit()`: what a method does in a client's turn concerns that client.
        return failed(member.client, phase, error)


def failed(client: int, phase: Phase, error: BaseException) -> Failed:
    """The `Failed` for an error in a turn. Errors of fewfed are sentences; for others type and place are added."""
    if isinstance(error, BadPacket):
        return Failed(client, phase.name, f"its packet was refused: {error}", "packet")
    if isinstance(error, LeftOut):
        return Failed(client, phase.name, str(error), error.cause)
    known = isinstance(error, (FewfedError, CannotTrain))
    return Failed(client, phase.name, str(error) if known else told(error))


@contextmanager
def network_randomness(job: Job, clock: Clock, phase: Phase, client: int) -> Iterator[None]:
    """Seed torch's generator from the plan for networks that draw (dropout); restore it afterwards."""
    if not (phase.epochs and job.net.is_random):
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(job.plan.network_seed(clock.round, phase.name, client))
        yield


def context_of(job: Job, phase: Phase, clock: Clock, shared: Tree, member: Member) -> Context:
    """What the method may look at for this member."""
    federation = job.federation
    if member.client != PSEUDO_CLIENT:
        data = job.rows_of(member.client)
        counts = job.counts_of(member.client)
    elif phase.cohort is Cohort.UNION:
        data = federation.union()
        counts = torch.bincount(data.y, minlength=job.task.classes) if job.task.classes else torch.zeros(0)
    else:
        data = Examples(federation.test.x[:0], federation.test.y[:0])
        counts = torch.zeros(job.task.classes, dtype=torch.long)
    return seen(job, context_with(job, phase, clock, data, counts, shared, member))


def context_with(
    job: Job, phase: Phase, clock: Clock, data: Examples, counts: Tensor, shared: Tree, member: Member
) -> Context:
    """What the method may look at for a member with these rows."""
    training = job.training_of(phase)
    return Context(
        net=job.net,
        task=job.task,
        plan=dataclasses.replace(job.plan, batch=training.batch, rule=training.batch_rule, dtype=job.net.dtype),
        phase=phase,
        clock=clock,
        client=member.client,
        lr=training.lr_at(clock.round),
        shape=tuple(job.federation.shape),
        data=data,
        counts=counts,
        shared=shared,
        personal=member.personal,
        state=member.state,
        weighting=training.weighting,
    )


def rows_to_train_on(job: Job, ctx: Context, book: Tree) -> Examples:
    """The rows of a turn, or `CannotTrain`, or `LeftOut`. Those that get new noise each time are without it here."""
    phase = ctx.phase
    gate.admit(job, ctx, book)
    if phase.cohort is not Cohort.SERVER and ctx.size == 0:
        raise CannotTrain("it has no samples: expected at least one")
    data = phase.does.data(unseen(job, ctx))
    answers.refuse_odd_rows(data)
    if phase.epochs and len(data) == 0:
        raise CannotTrain("there is nothing to train on: expected at least one row")
    return data


def refuse_broken(terms: Mapping[str, float], norm: float) -> None:
    """Raise `CannotTrain` where a loss term or the parameters' norm is not finite after training."""
    for name, value in terms.items():
        if not math.isfinite(value):
            raise CannotTrain(f"its loss term '{name}' became {value}: try a smaller lr")
    if not math.isfinite(norm):
        raise CannotTrain("its parameters became NaN or infinite: try a smaller lr")


def finished(job: Job, report: Report, ctx: Context, book: Tree, steps: int, terms: Mapping[str, float]) -> Finished:
    """What a client hands over, from what its method reports: all that its gates let through, and what it makes of that
    if it is an attacker."""
    if job.gates:
        answers.refuse_odd_report(report)
        report, book = gate.released(job, report, ctx, book)
        terms = terms if gate.tells_losses(job, ctx) else {}
    if job.adversary is not None and ctx.client in job.adversary.clients:
        answers.refuse_odd_report(report)
        report = job.adversary.altered(report, ctx)
    packet = packet_of(report, ctx.clock.round, ctx.phase.name, ctx.client, steps, terms)
    return Finished(packet, report.state, book=book if job.gates else {})


def _turn(job: Job, ctx: Context, member: Member, channels_last: bool) -> Finished:
    data = rows_to_train_on(job, ctx, member.book)
    batches = ctx.plan.batches(ctx.clock.round, ctx.phase.name, ctx.client, len(data), ctx.phase.epochs)
    ctx = dataclasses.replace(ctx, steps=len(batches))
    work = ctx.phase.does.begin(ctx)
    answers.refuse_odd_work(work, len(batches))
    if channels_last:
        work = {**work, "params": layout.channels_last(work["params"])}
    optimizer = _optimizer(job, ctx, work, member.moments) if batches else None
    terms = _trained(job, ctx, work, data, batches, optimizer) if optimizer else {}
    if channels_last:
        work = {**work, "params": layout.in_reading_order(work["params"])}
    with torch.no_grad():
        report = ctx.phase.does.end(work, ctx)
    found = finished(job, report, ctx, member.book, len(batches), terms)
    if optimizer and job.keeps_moments(ctx.phase):
        found = dataclasses.replace(found, moments=optimizer.moments([*work["params"]]))
    return _in_reading_order(found) if channels_last else found


def _optimizer(job: Job, ctx: Context, work: Tree, moments: Tree) -> LocalOptimizer:
    optimizer = LocalOptimizer(job.training_of(ctx.phase), list(work["params"].values()))
    if moments:
        optimizer.recall([*work["params"]], moments)
    return optimizer


def _trained(
    job: Job, ctx: Context, work: Tree, data: Examples, batches: list[Tensor], optimizer: LocalOptimizer
) -> dict[str, float]:
    """Train the work tree's parameters in place; the mean of every loss term."""
    does, step, source = ctx.phase.does, Step(job.method.observed), Rows(job, ctx, data)
    random = ctx.plan.random(ctx.clock.round, ctx.phase.name, ctx.client)
    params = list(work["params"].values())
    for leaf in params:
        leaf.requires_grad_(True)
    sums: dict[str, Tensor] = {}
    for rows in batches:
        drawn = does.draw(random, ctx, len(rows))
        if not sums:
            answers.refuse_odd_draws(drawn)
        on_host = data.x.device.type == "cpu"
        batch = Batch(*source.batch(rows), drawn if on_host else tree.to(drawn, data.x.device))
        gradient, terms = step.by_tape(work, ctx, batch)
        optimizer.step([gradient[name] for name in work["params"]], ctx.lr)
        for name, value in terms.items():
            sums[name] = sums[name] + value if name in sums else value
    for leaf in params:
        leaf.requires_grad_(False)
    means = {name: float(value) / len(batches) for name, value in sums.items()}
    refuse_broken(means, float(torch.stack(foreach_norm(params)).sum()) if params else 0.0)
    return means


def _in_reading_order(found: Finished) -> Finished:
    packet = dataclasses.replace(found.packet, arrays=layout.in_reading_order(found.packet.arrays))
    state, moments = layout.in_reading_order(found.state), layout.in_reading_order(found.moments)
    return Finished(packet, state, moments, found.book)
