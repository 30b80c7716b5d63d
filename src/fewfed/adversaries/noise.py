"""Attackers send noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from fewfed.adversaries.updates import UpdateAttack
from fewfed.engine.robust.parts import Part
from fewfed.method import Context


@dataclass(frozen=True)
class Noise(UpdateAttack):
    """The change of an attacker is Gaussian noise, about `scale` times as long as its own would be."""

    name = "noise"
    what = "it sends Gaussian noise, SCALE times as long as what it changed"
    scale: float = 3.0

    def instead(self, part: Part, leaves: dict[str, Tensor], ctx: Context) -> dict[str, Tensor]:
        numbers = sum(leaves[path].numel() for path in part.paths)
        deviation = self.scale * part.length(leaves) / math.sqrt(max(1, numbers))
        random = ctx.plan.attack(ctx.clock.round, f"{ctx.phase.name}/{part.paths[0]}", ctx.client)
        return {
            path: deviation * random.normal(*leaves[path].shape).to(leaves[path].device).double() for path in part.paths
        }
