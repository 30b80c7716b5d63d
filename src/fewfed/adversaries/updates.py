"""Attacks on what a client changed: what training made of it is replaced by something else of the same form."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fewfed import tree
from fewfed.adversaries.attack import Attack, sends
from fewfed.engine.robust.parts import CHANGES, Part, is_beside, parts_of
from fewfed.method import Context, Report
from fewfed.phase import Combine, Phase, Upload
from fewfed.tree import Tree


@dataclass(frozen=True)
class UpdateAttack(Attack):
    """Changes models, updates, controls and generators, however they are combined, by what they differ by from what was
    broadcast; as a whole where nothing was.

    Numbers that a network keeps beside what is trained stay as they are (a negative variance would be no attack on the
    combination, but a model that answers nothing), and so do counts and statistics.
    """

    scale: float = 1.0
    has_scale: ClassVar[bool] = True
    target: ClassVar[str] = "uploads that training changes: models, updates, controls or generators"

    def hits(self, phase: Phase) -> bool:
        return sends(phase) and any(_is_aim(upload) for upload in phase.uploads.values())

    def altered(self, report: Report, ctx: Context) -> Report:
        names = [name for name, upload in ctx.phase.uploads.items() if _is_aim(upload) and name in report.upload]
        if not names:
            return report
        upload = report.upload
        leaves, changed = dict(tree.leaves(upload)), dict[str, Tensor]()
        for part in parts_of(ctx.phase, names, upload, ctx.shared):
            if not is_beside(part.paths[0]):
                changed |= self._altered(part, leaves, ctx)
        made: Tree = tree.from_leaves({**leaves, **changed}, tree.hollows(upload))
        return report._replace(upload=made)

    def _altered(self, part: Part, leaves: dict[str, Tensor], ctx: Context) -> dict[str, Tensor]:
        found = {}
        for path, change in self.instead(part, leaves, ctx).items():
            base, leaf = part.bases.get(path), leaves[path]
            found[path] = (change if base is None else base.to(change) + change).to(leaf.dtype)
        return found

    @abstractmethod
    def instead(self, part: Part, leaves: dict[str, Tensor], ctx: Context) -> dict[str, Tensor]:
        """By path, the change that is handed over in the place of the client's own, in double precision."""

    @property
    def told(self) -> str:
        return f"{self.name}, scale {self.scale:g}"


def _is_aim(upload: Upload) -> bool:
    return upload.role in CHANGES and not upload.rows and upload.combine is not Combine.CONCAT
