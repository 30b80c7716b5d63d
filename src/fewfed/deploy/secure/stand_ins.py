"""Packets that stand for the sites of a sum, so that whoever combines packets gets the combination of the sum.

Every packet says the mean and an equal part of the weight; of sums the first packet says all and the others nothing. No
packet says anything of the site whose number it bears, but for what the site sent as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed import tree
from fewfed.deploy.secure.layout import Layout, Sums
from fewfed.engine.packet import BadPacket, Packet


@dataclass(frozen=True)
class StandIns:
    """The packets, and who has none."""

    packets: tuple[Packet, ...]
    """In the order of client numbers."""
    refused: Mapping[str, str]
    """Sites that sent something as it is that cannot be used, and why. Their values are in the sum nevertheless."""


def stand_ins(
    sums: Sums,
    layout: Layout,
    round: int,
    phase: str,
    clients: Mapping[str, int],
    check: Callable[[Packet], None],
    clear: Mapping[str, Mapping[str, Tensor]] | None = None,
    hollows: Collection[str] = (),
) -> StandIns:
    """One packet for each site of the sum.

    `clients`: the number of every site. `check` raises `BadPacket`, as a schema does. `clear`: by site, the arrays that
    it sent as they are, by path. `hollows`: paths of empty trees, which have no numbers to sum.
    """
    whole = {place.path: sums.values[place.path].to(place.dtype) for place in layout.places}
    nothing = {place.path: torch.zeros_like(whole[place.path]) for place in layout.places if not place.weighted}
    packets: list[Packet] = []
    refused: dict[str, str] = {}
    for site in sorted(sums.sites, key=lambda site: clients[site]):
        beside = (clear or {}).get(site, {})
        if problem := _problem(beside, layout):
            refused[site] = problem
            continue
        flat = {**whole, **(nothing if packets else {}), **beside}
        ordered = {path: flat[path] for path in layout.order if path in flat}
        arrays = tree.from_leaves({**ordered, **flat}, hollows)
        packet = Packet(round, phase, clients[site], sums.weight / len(sums.sites), arrays)
        try:
            check(packet)
        except BadPacket as error:
            refused[site] = str(error)
        else:
            packets.append(packet)
    return StandIns(tuple(packets), refused)


def _problem(beside: Mapping[str, Tensor], layout: Layout) -> str:
    """What is wrong with what a site sent as it is; empty if nothing is. What is summed cannot be sent beside the sum:
    it would stand in the sum's place, and no bound would hold for it."""
    for path in sorted(beside.keys() - layout.clear.keys()):
        return f"it sends '{path:.100}' beside the sum: expected only what cannot be summed"
    for path in sorted(layout.clear.keys() - beside.keys()):
        return f"it lacks '{path:.100}', which cannot be summed and is sent as it is"
    return ""
