"""Clients that nobody has, in whose place an attacker puts rows of its own and looks at what they would send.

The same as `shared_rows.imitated` for an attacker in a hurry: such a client is as large as it takes to send many rows
at once, and all rows behind what it sends are different ones. As a function of these rows it can be differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.engine.job import Job
from fewfed.engine.turn import Member, context_with
from fewfed.method import Context
from fewfed.phase import Clock, Phase
from fewfed.privacy.shared_rows import row_upload
from fewfed.tree import Tree

_MOST_BYTES = 1 << 26
"""What the rows of one such client may take."""
_MOST_ROWS = 50_000
_FEWEST_ROWS = 10
MOST_CLIENTS = 200
"""Clients that are imitated in one go."""


@dataclass(frozen=True)
class Exchanged:
    """A phase of a round, and what a member received in it."""

    job: Job
    phase: Phase
    clock: Clock
    shared: Tree
    personal: Tree

    def context(self, number: int, rows: Examples) -> Context:
        """What the method sees at a client with these rows. Numbers from 0 on are nobody's in the federation."""
        task = self.job.task
        counts = torch.bincount(rows.y.flatten(), minlength=task.classes) if task.classes else torch.zeros(0)
        member = Member(len(self.job.federation) + number, self.personal, self.job.method.client_init(self.job.setup))
        return context_with(self.job, self.phase, self.clock, rows, counts, self.shared, member)


@dataclass(frozen=True)
class StandIn:
    """One such client."""

    exchanged: Exchanged
    number: int
    rows: Examples
    """What it holds; the inputs of `slots` are left to whoever calls it."""
    slots: Tensor
    """Those of its rows that are behind anything it sends."""
    origins: Tensor
    """(rows sent, rows behind each), as places in `slots`, with -1 where fewer are."""

    def __call__(self, x: Tensor) -> Tensor:
        """What it sends if these are the inputs of its slots, a row of numbers each."""
        held = self.rows.x.index_copy(0, self.slots.to(self.rows.x.device), x.to(self.rows.x.dtype))
        ctx = self.exchanged.context(self.number, Examples(held, self.rows.y))
        does = ctx.phase.does
        sent: Tensor = does.decoded(dict(does.end(does.begin(ctx), ctx).upload))[row_upload(ctx.phase)]
        return sent.flatten(1)

    def sources(self, x: Tensor) -> Tensor:
        """Of each row sent the mean of the inputs behind it."""
        present = (self.origins >= 0).to(x.dtype).to(x.device)
        gathered = x.flatten(1)[self.origins.clamp(min=0).to(x.device)]
        return (gathered * present.unsqueeze(2)).sum(1) / present.sum(1, keepdim=True).clamp(min=1)

    def labels_behind(self) -> Tensor:
        """The labels of its slots."""
        return self.rows.y.cpu()[self.slots]


def stand_ins(exchanged: Exchanged, rows: Examples, count: int, first: int = 0) -> Iterator[StandIn]:
    """Clients with labels like those of `rows` that together send about `count` rows; none where they send nothing.
    Their numbers begin at `first`: clients of equal numbers draw equal noise."""
    sent, number = 0, first
    size = _size_for(exchanged, rows, count)
    while size and sent < count and number < first + MOST_CLIENTS:
        one = _stand_in(exchanged, number, rows, size)
        if not len(one.origins):
            return
        yield one
        sent += len(one.origins)
        number += 1


def groups_of(one: StandIn) -> tuple[Callable[[Tensor], Tensor], int] | None:
    """What a client sends as a function of one input for each set of rows behind it, and how many such sets there
    are. A set that is sent more than once counts once. None where rows are behind several of those that are sent."""
    groups, which = torch.unique(one.origins, dim=0, return_inverse=True)
    present = groups >= 0
    if int(present.sum()) != len(one.slots):
        return None
    first = torch.full((len(groups),), len(which)).scatter_reduce(0, which, torch.arange(len(which)), "amin")
    group_of = torch.empty(len(one.slots), dtype=torch.long)
    group_of[groups[present]] = torch.arange(len(groups)).unsqueeze(1).expand_as(groups)[present]

    def function(x: Tensor) -> Tensor:
        return one(x[group_of.to(x.device)])[first.to(x.device)]

    return function, len(groups)


def dealt(one: StandIn, rows: Examples, seed: int) -> Tensor:
    """Inputs for its slots: different rows, in turn, of the labels that the slots have."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    wanted, labels = one.labels_behind(), rows.y.cpu()
    if wanted.dim() != 1 or wanted.is_floating_point():
        return rows.x[order.repeat(-(-len(wanted) // len(order)))[: len(wanted)]]
    chosen = torch.empty(len(wanted), dtype=torch.long)
    for label in torch.unique(wanted):
        places = (wanted == label).nonzero().flatten()
        those = order[labels[order] == label]
        chosen[places] = those.repeat(-(-len(places) // len(those)))[: len(places)]
    return rows.x[chosen]


def _size_for(exchanged: Exchanged, rows: Examples, count: int) -> int:
    """Rows of a client that sends `count` rows, or as many as memory allows; 0 where nobody sends any."""
    each = max(1, rows.x[0].numel() * rows.x.element_size())
    most = max(_FEWEST_ROWS, min(_MOST_ROWS, _MOST_BYTES // each))
    found = found_sent = 0
    size = min(most, max(count, _FEWEST_ROWS))
    for _ in range(3):
        sent = len(_origins(exchanged, 0, _blank(rows, size)))
        if sent <= found_sent and found:
            break  # How much it sends does not depend on its size.
        found, found_sent = size, sent
        if sent >= count or size == most:
            break
        size = min(most, -(-size * count // sent) if sent else size * 10)
    return found if found_sent else 0


def _stand_in(exchanged: Exchanged, number: int, rows: Examples, size: int) -> StandIn:
    held = _blank(rows, size)
    origins = _origins(exchanged, number, held)
    slots, places = torch.unique(origins, return_inverse=True)
    missing = int((slots < 0).sum())
    x = held.x.clone()
    return StandIn(exchanged, number, Examples(x, held.y), slots[missing:], places - missing)


def _blank(rows: Examples, size: int) -> Examples:
    """So many rows with the labels of `rows` in turn, and all the same input, which takes no memory."""
    which = torch.arange(size) % len(rows)
    return Examples(rows.x[:1].expand(size, *rows.x.shape[1:]), rows.y[which])


def _origins(exchanged: Exchanged, number: int, rows: Examples) -> Tensor:
    return exchanged.phase.does.origins(exchanged.context(number, rows)).cpu()
