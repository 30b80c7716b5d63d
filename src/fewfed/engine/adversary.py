"""A client of a simulation that is not honest: what it hands over is not what its method reports.

What an adversary does are the attacks of `fewfed.adversaries`. It is no fault: its packets look as they must.
"""

from __future__ import annotations

from typing import Protocol

from fewfed.data.examples import Examples
from fewfed.method import Context, Report


class Adversary(Protocol):
    """All attackers of a run. The same object serves all of them."""

    @property
    def clients(self) -> frozenset[int]:
        """Who they are."""

    def rows(self, data: Examples, classes: int) -> Examples:
        """What one of them makes of its own rows before anything else looks at them; `classes`: how many there are."""

    def altered(self, report: Report, ctx: Context) -> Report:
        """What one of them hands over in the place of a report."""
