"""Krum and multi-Krum (Blanchard et al., NeurIPS 2017): packets that lie close together are chosen."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fewfed.engine.robust.by_coordinate import is_by_coordinate
from fewfed.engine.robust.parts import Gathered, Part
from fewfed.engine.robust.rule import Ruled, assumed
from fewfed.phase import Upload

_PIECE = 1 << 20
"""Numbers of all clients together that are compared at once: eight megabytes."""


@dataclass(frozen=True)
class Krum:
    """A client's score is the sum of its squared distances to its n − f − 2 nearest others, where f of the n clients
    may be attackers. Krum takes the packet of the lowest score alone. Multi-Krum takes n − f packets, and averages them
    with their weights. All other packets are left out of the phase, as if they had not been sent.

    Distances are taken over all that is averaged in the phase, and over sums of what training changes. Each upload
    counts the same: its squared distances are divided by their median.
    """

    attackers: float = 0.2
    """How many of a round's clients may be: below 1 a fraction, from 1 on a count."""
    many: bool = False
    works_with_fewer: bool = field(default=False, init=False)

    @property
    def name(self) -> str:
        return "multi-krum" if self.many else "krum"

    @property
    def told(self) -> str:
        taken = "" if self.many else " (one client's packet alone)"
        return f"{self.name}{taken}, {self.attackers:g} of the clients may be attackers"

    def covers(self, upload: Upload) -> bool:
        return is_by_coordinate(upload)

    def needs(self, invited: int) -> int:
        return 2 * assumed(self.attackers, invited) + 3

    def applied(self, gathered: Gathered, invited: int) -> Ruled:
        packets, bad = gathered.packets, assumed(self.attackers, invited)
        judged = [name for name, upload in gathered.phase.uploads.items() if self.covers(upload)]
        if not judged:
            return Ruled(packets)
        leaves, count = gathered.leaves(), len(packets)
        apart = torch.zeros(count, count, dtype=torch.float64)
        for part in gathered.parts(judged):
            apart += _in_medians(_squared_distances(leaves, part))
        scores = _scores(apart, count - bad - 2)
        best = frozenset(scores.argsort(stable=True)[: count - bad if self.many else 1].tolist())
        chosen = tuple(packet for place, packet in enumerate(packets) if place in best)
        left = tuple(packet.sender for place, packet in enumerate(packets) if place not in best)
        return Ruled(chosen, not_chosen=left)


def _scores(apart: Tensor, neighbours: int) -> Tensor:
    others = apart.clone().fill_diagonal_(torch.inf)
    return others.sort(1).values[:, :neighbours].sum(1)


def _squared_distances(leaves: list[dict[str, Tensor]], part: Part) -> Tensor:
    """Between all clients. Measured from the middle of each number, so that one client that is far off does not take
    the precision from what lies between the others."""
    count = len(leaves)
    found = torch.zeros(count, count, dtype=torch.float64)
    for path in part.paths:
        flat = [each[path].detach().reshape(-1) for each in leaves]
        length = max(1, _PIECE // count)
        for start in range(0, flat[0].numel(), length):
            values = torch.stack([leaf[start : start + length] for leaf in flat]).double()
            centred = values - values.sort(0).values[count // 2]
            products = (centred @ centred.T).cpu()
            lengths = products.diagonal()
            apart = (lengths.unsqueeze(1) + lengths.unsqueeze(0) - 2 * products).clamp(min=0)
            found += apart.nan_to_num(nan=torch.inf, posinf=torch.inf)  # Two whose squares are beyond all numbers.
    return found


def _in_medians(squares: Tensor) -> Tensor:
    count = len(squares)
    pairs = squares[torch.triu(torch.ones(count, count, dtype=torch.bool), 1)].sort().values
    middle = float(pairs[(len(pairs) - 1) // 2])
    if middle == 0:  # Most are equal: whoever is not is as far off as can be said.
        middle = float(pairs[-1])
    return squares / middle if 0 < middle < torch.inf else squares
