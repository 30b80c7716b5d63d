"""Rows that a phase sends one by one, and the rows of data behind them.

An attacker knows the method, so it can do with rows of its own what a client does with its rows: `imitated` gives it
pairs of what is sent and what that was made of, with every defence of the method in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.engine.job import Job
from fewfed.engine.threads import one_thread
from fewfed.engine.turn import Member, context_of, context_with
from fewfed.errors import RunError
from fewfed.method import Context, Report
from fewfed.phase import Clock, Phase
from fewfed.tree import Tree

MOST_TURNS = 10_000
"""Clients that are imitated in one go, at most."""


@dataclass(frozen=True)
class SharedRows:
    """Uploaded rows and where they come from."""

    sent: Tensor
    labels: Tensor | None
    """As they were sent with the rows; None where none were."""
    origins: Tensor
    """(rows sent, rows behind each), with -1 where fewer are: numbers of rows in `rows`."""
    rows: Examples
    places: Tensor | None = None
    """(rows sent, 2): the client that sent each, and how many it sent before; None where names are not looked at."""

    def __len__(self) -> int:
        return len(self.sent)

    @property
    def present(self) -> Tensor:
        """Which entries of `origins` are rows."""
        return self.origins >= 0

    @property
    def sources(self) -> Tensor:
        """Of each row sent the mean of the inputs behind it: the input itself where there is one."""
        x = self.rows.x[self.origins.clamp(min=0)]
        weight = self.present.to(x.dtype).reshape(*self.origins.shape, *[1] * (x.dim() - 2))
        return (x * weight).sum(1) / weight.sum(1).clamp(min=1)

    def part(self, which: Tensor) -> SharedRows:
        """Some of them, by number."""
        labels = None if self.labels is None else self.labels[which]
        places = None if self.places is None else self.places[which]
        return SharedRows(self.sent[which], labels, self.origins[which], self.rows, places)


def row_upload(phase: Phase) -> str:
    """The upload of a phase that is one row of features or inputs for each of several rows; empty where none is."""
    return phase.row_upload


def label_upload(phase: Phase) -> str:
    """The upload of a phase with their labels; empty where none is."""
    return phase.label_upload


def rows_in(arrays: Mapping[str, Any], upload: str) -> int:
    """How many rows an upload has; where a wrapper packed them, each of its parts has as many."""
    return next((len(leaf) for _, leaf in tree.leaves({"": arrays[upload]})), 0)


def of_arrays(phase: Phase, arrays: Mapping[str, Tensor], origins: Tensor, rows: Examples) -> SharedRows:
    """The rows in an upload, as numbers: what a wrapper packed is unpacked."""
    labels, numbers = label_upload(phase), phase.does.decoded(dict(arrays))
    return SharedRows(numbers[row_upload(phase)], numbers[labels] if labels else None, origins, rows)


def of_client(job: Job, phase: Phase, clock: Clock, shared: Tree, member: Member, arrays: Tree) -> SharedRows:
    """The rows that a client of a simulation sent, with the truth about them, which no attacker is told."""
    ctx = context_of(job, phase, clock, shared, member)
    sent = phase.does.decoded(dict(arrays))[row_upload(phase)]
    return of_arrays(phase, arrays, origins_of(ctx, sent), ctx.data)


def origins_of(ctx: Context, sent: Tensor) -> Tensor:
    """The rows behind each row that a client of a simulation sent, which are given as numbers. Where its site's policy
    kept some back, those that left are found among all that the method would have sent."""
    origins = ctx.phase.does.origins(ctx)
    if len(sent) == len(origins):
        return origins
    if ctx.phase.epochs:
        raise RunError(
            f"client {ctx.client} sent {len(sent)} of {len(origins)} rows in phase '{ctx.phase.name}', in which it "
            "trained too: which ones is not known; run it without a policy that keeps rows back"
        )
    all_sent: Tensor = ctx.phase.does.decoded(dict(_report(ctx).upload))[row_upload(ctx.phase)]
    everything = all_sent.flatten(1).double().cpu()
    places, start = [], 0
    for row in sent.flatten(1).double().cpu():
        alike = torch.isclose(everything[start:], row, rtol=1e-3, atol=1e-5).all(1).nonzero().flatten()
        if not len(alike):
            raise RunError(f"client {ctx.client} sent rows in phase '{ctx.phase.name}' that its method would not send")
        places.append(start + int(alike[0]))
        start = places[-1] + 1
    return origins[torch.tensor(places, dtype=torch.long, device=origins.device)]


def sent_by(job: Job, phase: Phase, clock: Clock, shared: Tree, member: Member, rows: Examples) -> SharedRows:
    """What a client with these rows would send in a phase in which nobody trains."""
    counts = torch.bincount(rows.y, minlength=job.task.classes) if job.task.classes else torch.zeros(0)
    ctx = context_with(job, phase, clock, rows, counts, shared, member)
    return of_arrays(phase, _report(ctx).upload, phase.does.origins(ctx), rows)


def _report(ctx: Context) -> Report:
    with one_thread(), torch.no_grad():
        return ctx.phase.does.end(ctx.phase.does.begin(ctx), ctx)


def imitated(
    job: Job, phase: Phase, clock: Clock, shared: Tree, rows: Examples, count: int, *, personal: Tree | None = None,
    seed: int = 0, first: int = 0,
) -> SharedRows:  # fmt: skip
    """At least `count` rows as clients of the usual size would send them that hold an attacker's own `rows`, drawn in
    turn; fewer, or none, where such clients send hardly any. Their numbers are nobody's in the federation, and begin
    `first` later: clients of equal numbers draw equal noise, from which nothing true is to be learnt."""
    size = min(len(rows), _usual_size(job))
    random = torch.Generator().manual_seed(seed)
    found: list[SharedRows] = []
    sent, order = 0, torch.empty(0, dtype=torch.long)
    state = job.method.client_init(job.setup)
    for number in range(MOST_TURNS):
        if sent >= count or (number >= 100 and not sent):
            break
        if len(order) < size:
            order = torch.cat([order, torch.randperm(len(rows), generator=random)])
        held, order = order[:size], order[size:]
        member = Member(len(job.federation) + first + number, personal or {}, state)
        one = sent_by(job, phase, clock, shared, member, rows.rows(held.to(rows.y.device)))
        origins = torch.where(one.present, held[one.origins.clamp(min=0).cpu()].to(one.origins.device), -1)
        found.append(SharedRows(one.sent, one.labels, origins, rows))
        sent += len(one)
    return joined(found)


def _usual_size(job: Job) -> int:
    sizes = [len(job.federation.examples(client)) for client in range(min(len(job.federation), 100))]
    return max(1, sorted(sizes)[len(sizes) // 2])


def joined(parts: Sequence[SharedRows]) -> SharedRows:
    """All of several, whose sources are the same rows."""
    labels = [part.labels for part in parts if part.labels is not None]
    widest = max(part.origins.shape[1] for part in parts)
    origins = [torch.nn.functional.pad(part.origins, (0, widest - part.origins.shape[1]), value=-1) for part in parts]
    return SharedRows(
        torch.cat([part.sent for part in parts]),
        torch.cat(labels) if labels else None,
        torch.cat(origins),
        parts[0].rows,
    )
