"""Attackers send the opposite of what they learnt."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fewfed.adversaries.updates import UpdateAttack
from fewfed.engine.robust.parts import Part
from fewfed.method import Context


@dataclass(frozen=True)
class SignFlip(UpdateAttack):
    """The change of an attacker is minus `scale` times its own."""

    name = "sign-flip"
    what = "it sends minus SCALE times what it changed"
    scale: float = 1.0

    def instead(self, part: Part, leaves: dict[str, Tensor], ctx: Context) -> dict[str, Tensor]:  # noqa: ARG002
        return {path: -self.scale * part.change(leaves, path) for path in part.paths}
