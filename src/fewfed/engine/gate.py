"""What stands at the edge of a client: it decides whether a turn begins, and what of its report is handed over.

A gate belongs to the site, not to the method: a budget, a release policy. What it must not forget between rounds is in
the client's *book*, a tree that its home keeps beside the method's state and that no method sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from fewfed.method import Context, Report
from fewfed.phase import Clock, Cohort
from fewfed.tree import Tree

if TYPE_CHECKING:
    from fewfed.engine.job import Job

LeftOutCause = Literal["policy", "budget"]


class LeftOut(Exception):
    """A client does not take part in a phase because its gate forbids it; the message says why."""

    def __init__(self, message: str, cause: LeftOutCause) -> None:
        super().__init__(message)
        self.cause: LeftOutCause = cause


class Gate(Protocol):
    """One thing that watches over what leaves a client. The same object serves all clients of a simulation."""

    @property
    def name(self) -> str:
        """Under which its notes are in the book."""

    @property
    def withdraws(self) -> bool:
        """Whether a client may withdraw what it sent, so that it must be known whose rows are where."""

    def withdrawn(self, clock: Clock) -> frozenset[int]:
        """Clients whose rows must not be used any more from this round on."""

    def admit(self, ctx: Context, notes: Tree) -> None:
        """Raise `LeftOut` where the client must not take part in this phase."""

    def released(self, report: Report, ctx: Context, notes: Tree) -> tuple[Report, Tree]:
        """What is handed over of a report, and the notes afterwards. Raises `LeftOut` where nothing may be."""

    def tells_losses(self, client: int) -> bool:
        """Whether the mean losses of training may leave a client, which the engine adds to what a method reports."""


def admit(job: Job, ctx: Context, book: Tree) -> None:
    """Ask every gate whether a turn may begin."""
    if _crosses(ctx):
        for gate in job.gates:
            gate.admit(ctx, book.get(gate.name, {}))


def released(job: Job, report: Report, ctx: Context, book: Tree) -> tuple[Report, Tree]:
    """A report as the gates let it through, one after another, and the client's book afterwards; an empty one where
    nobody notes anything."""
    if not _crosses(ctx):
        return report, {}
    noted = dict(book)
    for gate in job.gates:
        report, noted[gate.name] = gate.released(report, ctx, noted.get(gate.name, {}))
    return report, noted


def tells_losses(job: Job, ctx: Context) -> bool:
    """Whether the mean losses of a turn may be handed over."""
    return not _crosses(ctx) or all(gate.tells_losses(ctx.client) for gate in job.gates)


def _crosses(ctx: Context) -> bool:
    """Whether what is reported leaves a client: what the server does by itself does not."""
    return ctx.phase.cohort in (Cohort.ROUND, Cohort.ALL)
