"""Sites that have withdrawn, as a gate of the coordinator's: the loop takes their rows out of what the server keeps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from fewfed.deploy.coordinator.homes import RemoteHomes
from fewfed.method import Context, Report
from fewfed.phase import Clock
from fewfed.tree import Tree


@dataclass(frozen=True)
class Withdrawals:
    """Knows who has said so, and who was taken off the roster. What leaves sites is watched by gates of their own, at
    the sites."""

    homes: RemoteHomes
    names: Sequence[str]
    removed: Collection[str] = ()
    name: str = field(default="withdrawals", init=False)
    withdraws: bool = field(default=True, init=False)

    def withdrawn(self, clock: Clock) -> frozenset[int]:  # noqa: ARG002
        gone = {*self.homes.withdrawn, *self.removed}
        return frozenset(number for number, name in enumerate(self.names) if name in gone)

    def admit(self, ctx: Context, notes: Tree) -> None:
        """Nobody's turn begins here."""

    def released(self, report: Report, ctx: Context, notes: Tree) -> tuple[Report, Tree]:  # noqa: ARG002
        return report, notes

    def tells_losses(self, client: int) -> bool:  # noqa: ARG002
        return True
