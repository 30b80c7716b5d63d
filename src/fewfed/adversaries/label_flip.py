"""Attackers train, and share, rows with wrong labels."""

from __future__ import annotations

from dataclasses import dataclass

from fewfed.adversaries.attack import Attack, sends
from fewfed.data.examples import Examples
from fewfed.phase import Phase


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Every label becomes the next class, the last one the first: all are wrong, and at all attackers in the same way.

    What is then computed is computed honestly, so that nothing about the packet is odd but what was learnt.
    """

    name = "label-flip"
    what = "its rows have wrong labels: every class becomes the next one"
    needs_classes = True
    target = "rows with class labels at clients that send something"

    def hits(self, phase: Phase) -> bool:
        return sends(phase)

    def rows(self, data: Examples, classes: int) -> Examples:
        return Examples(data.x, (data.y + 1) % classes)
