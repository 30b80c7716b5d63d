"""What an attack is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from fewfed.privacy.attacks.case import Case
from fewfed.privacy.attacks.finding import Finding

Tell = Callable[[str], None]
"""Takes a few words about what is being done."""


class Attack(Protocol):
    """One kind of attack. It reads what a run sent and what its attacker may hold, and nothing else; the rows of the
    clients are looked at only to score it."""

    @property
    def name(self) -> str:
        """What a user calls it."""

    @property
    def title(self) -> str:
        """What it is, in a line."""

    def why_not(self, case: Case) -> str:
        """Why it does not apply; empty where it does."""

    def findings(self, case: Case, tell: Tell) -> list[Finding]:
        """What it found."""
