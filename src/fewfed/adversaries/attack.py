"""What an attack is, and who carries it out.

Attacks know roles and combinations of uploads, never names of methods. They act where a client ends: on its rows before
anything looks at them, or on its report before it becomes a packet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from fewfed.data.examples import Examples
from fewfed.engine.job import is_inside
from fewfed.method import Context, Report
from fewfed.phase import Phase


@dataclass(frozen=True)
class Attack(ABC):
    """One way to attack: by what an attacker makes of its rows, or of its report; by default it leaves both alone."""

    name: ClassVar[str] = ""
    what: ClassVar[str] = ""
    """What attackers do, for a user."""
    target: ClassVar[str] = ""
    """What a phase must have for it."""
    needs_classes: ClassVar[bool] = False
    """Whether labels must be classes."""
    has_scale: ClassVar[bool] = False
    """Whether its strength can be set."""

    @abstractmethod
    def hits(self, phase: Phase) -> bool:
        """Whether it changes anything of what clients do in a phase."""

    def rows(self, data: Examples, classes: int) -> Examples:  # noqa: ARG002
        """The rows of an attacker."""
        return data

    def altered(self, report: Report, ctx: Context) -> Report:  # noqa: ARG002
        """What an attacker hands over."""
        return report

    @property
    def told(self) -> str:
        """The attack as a table names it."""
        return self.name


def sends(phase: Phase) -> bool:
    """Whether anything leaves clients in a phase."""
    return bool(phase.uploads) and not is_inside(phase)


@dataclass(frozen=True)
class Attackers:
    """Some clients of a simulation that all carry out the same attack."""

    clients: frozenset[int]
    attack: Attack

    def rows(self, data: Examples, classes: int) -> Examples:
        return self.attack.rows(data, classes)

    def altered(self, report: Report, ctx: Context) -> Report:
        return self.attack.altered(report, ctx)
