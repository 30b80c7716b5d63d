"""Attackers send more than they learnt, to outweigh the others."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fewfed.adversaries.updates import UpdateAttack
from fewfed.engine.robust.parts import Part
from fewfed.method import Context


@dataclass(frozen=True)
class Boost(UpdateAttack):
    """The change of an attacker is `scale` times its own."""

    name = "boost"
    what = "it sends SCALE times what it changed"
    scale: float = 10.0

    def instead(self, part: Part, leaves: dict[str, Tensor], ctx: Context) -> dict[str, Tensor]:  # noqa: ARG002
        return {path: self.scale * part.change(leaves, path) for path in part.paths}
