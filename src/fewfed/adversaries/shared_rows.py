"""Attacks on rows that clients share: wrong labels beside them, or features that are far off."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fewfed.adversaries.attack import Attack, sends
from fewfed.method import Context, Report
from fewfed.phase import Phase, Role

_ROWS = (Role.FEATURES, Role.INPUTS)


@dataclass(frozen=True)
class RowAttack(Attack):
    """Changes uploads that count rows, by their role. Models stay what the client has honestly trained."""

    roles: ClassVar[tuple[Role, ...]] = ()

    def hits(self, phase: Phase) -> bool:
        return sends(phase) and any(upload.rows and upload.role in self.roles for upload in phase.uploads.values())

    def altered(self, report: Report, ctx: Context) -> Report:
        names = [name for name, upload in ctx.phase.uploads.items() if upload.rows and upload.role in self.roles]
        rows = {name: self._each(report.upload[name], ctx) for name in names if name in report.upload}
        return report._replace(upload={**report.upload, **rows}) if rows else report

    def _each(self, value: Any, ctx: Context) -> Any:
        if isinstance(value, Tensor):
            return self.poisoned(value, ctx)
        return {name: self._each(part, ctx) for name, part in value.items()}

    @abstractmethod
    def poisoned(self, rows: Tensor, ctx: Context) -> Tensor:
        """What is sent in the place of some rows."""


@dataclass(frozen=True)
class RowLabels(RowAttack):
    """Shared rows are sent with the label of the next class; shares of classes move on by one class."""

    name = "row-labels"
    what = "the rows it shares have wrong labels: every class becomes the next one"
    needs_classes = True
    target = "rows that are shared with their labels"
    roles = (Role.LABELS,)

    def poisoned(self, rows: Tensor, ctx: Context) -> Tensor:
        if rows.is_floating_point():
            return rows.roll(1, dims=1) if rows.dim() > 1 else rows
        return (rows + 1) % ctx.task.outputs


@dataclass(frozen=True)
class RowFeatures(RowAttack):
    """Shared rows are sent `scale` times as large, with their labels. Whole numbers stay: where rows are sent as codes,
    the real numbers beside them say how large they are."""

    name = "row-features"
    what = "the rows it shares are SCALE times as large"
    target = "features or inputs of rows that are shared"
    has_scale = True
    roles = _ROWS
    scale: float = 5.0

    def poisoned(self, rows: Tensor, ctx: Context) -> Tensor:  # noqa: ARG002
        return rows * self.scale if rows.is_floating_point() else rows

    @property
    def told(self) -> str:
        return f"{self.name}, scale {self.scale:g}"
