"""The median of every number (Yin et al., ICML 2018)."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fewfed.engine.robust.by_coordinate import by_coordinate, is_by_coordinate
from fewfed.engine.robust.parts import Gathered
from fewfed.engine.robust.rule import Ruled
from fewfed.phase import Upload


@dataclass(frozen=True)
class Median:
    """The middle one of what clients say of a number, of an even count the mean of the middle two.

    All clients count the same, whatever they weigh: with weights, one that claims to have most of the rows would decide
    alone. As long as fewer than half are attackers, no result lies outside of what honest clients sent.
    """

    name: str = field(default="median", init=False)
    works_with_fewer: bool = field(default=True, init=False)

    @property
    def told(self) -> str:
        return "the median"

    def covers(self, upload: Upload) -> bool:
        return is_by_coordinate(upload)

    def needs(self, invited: int) -> int:  # noqa: ARG002
        return 3  # Of two, nobody can tell which one is odd.

    def applied(self, gathered: Gathered, invited: int) -> Ruled:  # noqa: ARG002
        return Ruled(gathered.packets, by_coordinate(gathered, _middle))


def _middle(values: Tensor, weights: Tensor) -> Tensor:  # noqa: ARG001
    ordered, count = values.sort(0).values, len(values)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
