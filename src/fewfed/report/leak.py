"""What can be reconstructed of shared rows, for people."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fewfed.runs.results import Leak

ATTACKERS: Mapping[str, str] = MappingProxyType(
    {"ridge": "ridge regression", "inverting": "least squares with the model's weights"}
)
EXPLAINED = "leak: R2 of shared rows as an attacker reconstructs them, part re-identified"
"""What the column of a table is."""


def sentence(leak: Leak) -> str:
    """One line about a run."""
    return (
        f"shared rows: R2 {leak.r2:.2f} of their inputs reconstructed, {100 * leak.reidentified:.0f} % of {leak.rows} "
        f"re-identified among {leak.among} (chance {100 * leak.chance:.2g} %), by "
        f"{ATTACKERS.get(leak.attacker, leak.attacker)} and {leak.held} rows nobody trained on; round {leak.round}"
    )


def cell(r2: float | None, reidentified: float | None) -> str:
    """A cell of a table; empty where no rows were shared."""
    return "" if r2 is None or reidentified is None else f"{r2:.2f} {100 * reidentified:.0f}%"
