"""What sites would hand over whose labels an attacker knows, because it plays them itself with rows of its own.

The method's own code runs, with every defence in it, so that whoever learns from these packets learns against the
defence in use.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.data.federation import GeneratedFederation
from fewfed.engine.outcomes import Finished
from fewfed.engine.packet import Packet
from fewfed.engine.threads import one_thread
from fewfed.engine.turn import Member, run_turn
from fewfed.privacy.attacks.case import Case, Exchanged


@dataclass(frozen=True)
class Played:
    """A site that the attacker played."""

    packet: Packet
    counts: Tensor
    """Its rows of each class."""


def played(case: Case, exchanged: Exchanged, rows: Examples, count: int) -> list[Played]:
    """What came of a phase at so many sites with random classes and shares of them. Those that fail are left out."""
    job, random = case.job, torch.Generator().manual_seed(case.seed + 17)
    before = len(job.federation)
    device = rows.y.device
    held = [
        rows.rows(numbers.to(device))
        for numbers in _drawn(rows.y.cpu(), job.task.classes, _sizes(case, exchanged), count, random)
    ]
    # Numbers that no client has: what is drawn for these must stay unknown to an attacker.
    sites = GeneratedFederation(
        before + count,
        lambda client: held[client - before] if client >= before else job.federation.examples(client),
        job.federation.test,
        job.federation.classes,
        variation=job.federation.variation,
    )
    theirs = dataclasses.replace(job, federation=sites)
    phase, clock = case.phase(exchanged.round, exchanged.phase), case.clock(exchanged.round)
    shared = tree.to(exchanged.broadcast, device)
    personal = tree.to(next(iter(exchanged.personal.values()), {}), device)
    state = tree.to(job.method.client_init(job.setup), device)
    found = []
    for number in range(count):
        with one_thread():
            outcome = run_turn(theirs, phase, clock, shared, Member(before + number, personal, state))
        if isinstance(outcome, Finished):
            packet = dataclasses.replace(outcome.packet, arrays=tree.to(outcome.packet.arrays, "cpu"))
            found.append(Played(packet, sites.counts(before + number).cpu()))
    return found


def _sizes(case: Case, exchanged: Exchanged) -> list[int]:
    """Rows of the clients that sent something: what a client weighs says as much where it counts by rows."""
    return [case.job.federation.size(client) for client in exchanged.packets]


def _drawn(y: Tensor, classes: int, sizes: list[int], count: int, random: torch.Generator) -> list[Tensor]:
    """Row numbers of each site: one to all classes, unequal shares, sizes in turn."""
    by_class = [(y == label).nonzero().flatten() for label in range(classes)]
    present = [label for label in range(classes) if len(by_class[label])]
    found = []
    for number in range(count):
        size = sizes[number % len(sizes)]
        some = min(int(torch.randint(1, len(present) + 1, (1,), generator=random)), size)
        chosen = [present[each] for each in torch.randperm(len(present), generator=random)[:some].tolist()]
        share = torch.empty(some).exponential_(generator=random) + 0.05
        # One row of each class at least, the others by their shares; rows may repeat where a class has few.
        drawn = (
            torch.cat([torch.arange(some), torch.multinomial(share, size - some, True, generator=random)])
            if size > some
            else torch.arange(some)
        )
        rows = [
            by_class[chosen[each]][int(torch.randint(len(by_class[chosen[each]]), (1,), generator=random))]
            for each in drawn.tolist()
        ]
        found.append(torch.stack(rows))
    return found
