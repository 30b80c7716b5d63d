"""The mean of clipped changes (Sun et al., 2019): whoever went further than a bound is taken back to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fewfed import tree
from fewfed.engine.packet import Packet
from fewfed.engine.robust.bound import MEDIAN, Bound
from fewfed.engine.robust.parts import Gathered, Part, is_measured
from fewfed.engine.robust.rule import Ruled
from fewfed.phase import Upload


@dataclass(frozen=True)
class Clipped:
    """Every part of a client's uploads is shortened to the bound, in the direction it had, and then combined as
    declared, with the clients' weights. What a client may do is bounded; in which direction is not.

    It also reaches uploads of which the server reads every client's by itself (KEEP).
    """

    bound: Bound = MEDIAN
    name: str = field(default="clipped", init=False)
    works_with_fewer: bool = field(default=True, init=False)

    @property
    def told(self) -> str:
        return f"the mean of changes clipped to {self.bound}"

    def covers(self, upload: Upload) -> bool:
        return is_measured(upload)

    def needs(self, invited: int) -> int:  # noqa: ARG002
        return 3 if self.bound.is_relative else 1

    def applied(self, gathered: Gathered, invited: int) -> Ruled:  # noqa: ARG002
        names = [name for name, upload in gathered.phase.uploads.items() if self.covers(upload)]
        leaves = gathered.leaves()
        shorter: list[dict[str, Tensor]] = [{} for _ in leaves]
        for part in gathered.parts(names):
            if not part.has_length:
                continue
            lengths = [part.length(each) for each in leaves]
            most = self.bound.of(lengths)
            for place, length in enumerate(lengths):
                if length > most:
                    shorter[place] |= _shortened(part, leaves[place], most / length)
        packets = tuple(_with(packet, changed) for packet, changed in zip(gathered.packets, shorter, strict=True))
        clipped = tuple(p.sender for p, changed in zip(gathered.packets, shorter, strict=True) if changed)
        return Ruled(packets, clipped=clipped)


def _shortened(part: Part, leaves: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    found = {}
    for path in part.paths:
        change = factor * part.change(leaves, path)
        base = part.bases.get(path)
        found[path] = (change if base is None else base.to(change) + change).to(leaves[path].dtype)
    return found


def _with(packet: Packet, changed: Mapping[str, Tensor]) -> Packet:
    if not changed:
        return packet
    leaves = {**dict(tree.leaves(packet.arrays)), **changed}
    return dataclasses.replace(packet, arrays=tree.from_leaves(leaves, tree.hollows(packet.arrays)))
