"""The interface of a rule: how the uploads of a cohort are combined where some clients may not be honest."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from fewfed.engine.packet import Packet
from fewfed.engine.robust.parts import Gathered
from fewfed.phase import Upload
from fewfed.tree import Tree

_ROUNDING = 1e-9
"""A tenth of thirty clients is three, whatever a product of binary fractions says."""


@dataclass(frozen=True)
class Ruled:
    """What a rule made of a cohort's packets."""

    packets: tuple[Packet, ...]
    """Those that take part, as they are to be combined."""
    values: Tree = field(default_factory=dict)
    """Uploads that the rule has combined itself, by name; all others are combined as their phase declares."""
    clipped: tuple[int, ...] = ()
    """Clients whose change was shortened."""
    not_chosen: tuple[int, ...] = ()
    """Clients whose packets were left out because others lie closer together."""


class Rule(Protocol):
    """One way to combine. It has no memory: the same packets give the same result."""

    @property
    def name(self) -> str:
        """As a user writes it."""

    @property
    def told(self) -> str:
        """As a table names it."""

    @property
    def works_with_fewer(self) -> bool:
        """Whether it can go on with fewer packets than it needs to tell who is odd."""

    def covers(self, upload: Upload) -> bool:
        """Whether it changes how such an upload is combined."""

    def needs(self, invited: int) -> int:
        """Fewest packets of which it can tell who is odd, in a phase to which so many clients were invited."""

    def applied(self, gathered: Gathered, invited: int) -> Ruled:
        """What becomes of the packets: as many as it needs, or fewer if it works with those."""


def assumed(attackers: float, invited: int) -> int:
    """How many of the clients of a phase may be attackers: below 1 a fraction, rounded up; from 1 on a count."""
    return int(attackers) if attackers >= 1 else math.ceil(attackers * invited - _ROUNDING)
