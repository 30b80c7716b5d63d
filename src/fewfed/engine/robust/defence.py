"""What the server does against clients that may not be honest."""

from __future__ import annotations

from dataclasses import dataclass

from fewfed.engine.job import is_inside
from fewfed.engine.robust.norm_bound import NormBound
from fewfed.engine.robust.rows import RowFilter
from fewfed.engine.robust.rule import Rule
from fewfed.phase import Phase


@dataclass(frozen=True)
class Defence:
    """A bound that refuses packets, then a rule that combines what is left, then a filter of shared rows. Each may be
    missing; all of them need the packets of a cohort at the same time, in memory."""

    rule: Rule | None = None
    bound: NormBound | None = None
    rows: RowFilter | None = None

    def concerns(self, phase: Phase) -> bool:
        """Whether anything of it can act in a phase. What the server does by itself is left alone."""
        return not is_inside(phase) and (
            any(self._covers(phase, name) for name in phase.uploads)
            or (self.rows is not None and self.rows.covers(phase))
        )

    def uncovered(self, phase: Phase) -> tuple[str, ...]:
        """Uploads of a phase that are combined as declared, whoever sent them."""
        filtered = self.rows is not None and self.rows.covers(phase)
        return tuple(
            name
            for name, upload in phase.uploads.items()
            if not self._covers(phase, name) and not (filtered and upload.rows)
        )

    def _covers(self, phase: Phase, name: str) -> bool:
        upload = phase.uploads[name]
        return bool((self.rule and self.rule.covers(upload)) or (self.bound and self.bound.covers(upload)))
