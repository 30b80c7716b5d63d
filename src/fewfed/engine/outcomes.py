"""The possible results of a client's turn in a phase."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fewfed.engine.packet import Packet
from fewfed.tree import Tree

if TYPE_CHECKING:
    from fewfed.engine.combine import Combiner


@dataclass(frozen=True)
class Failed:
    """A client that is left out of a phase, and why."""

    client: int
    phase: str
    reason: str
    cause: Literal["client", "packet", "worker", "policy", "budget", "defence", "absent", "sum"] = "client"
    """What went wrong: its own work, what it handed over, or the process it ran in. Or who forbade it: its site's
    release policy, or its privacy budget. Or that the server's defence refused what it handed over. Or, between real
    sites, that it could not be asked at all, or that there is no sum under masks, which it was part of."""

    @property
    def was_forbidden(self) -> bool:
        """Whether nothing went wrong: its site does not take part."""
        return self.cause in ("policy", "budget")

    @property
    def may_pass(self) -> bool:
        """Whether the next round may do better as it is: nothing is known to be wrong with the model or the method."""
        return self.was_forbidden or self.cause in ("absent", "sum")

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Finished:
    """A client that has done its work. Its packet has not been checked yet."""

    packet: Packet
    state: Tree
    """What it will remember if the packet is accepted."""
    moments: Tree = field(default_factory=dict)
    """Of its optimiser, where they stay from round to round. At home, like the state; the method sees neither."""
    book: Tree = field(default_factory=dict)
    """What its gates have noted of what left it (`fewfed.engine.gate`); kept even if the packet is refused."""


@dataclass(frozen=True)
class Done:
    """A client whose packet was accepted. Its arrays may be overwritten once the next outcome is asked for."""

    packet: Packet


@dataclass(frozen=True)
class Partial:
    """Several clients whose packets were accepted and are combined already."""

    combined: Combiner
    packets: tuple[Packet, ...]
    """Without their arrays."""
    shown: tuple[Packet, ...] = ()
    """Those that the briefing asks to be shown, whole, in the order of client numbers."""


Outcome = Done | Failed | Partial
