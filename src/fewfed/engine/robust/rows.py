"""Shared rows that are far from what other clients sent of the same class are left out, features and labels alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fewfed.engine.packet import Packet
from fewfed.engine.robust.parts import Gathered
from fewfed.phase import Combine, Phase

_FEWEST = 3
"""Clients that must have sent rows of a class: of two, nobody can tell which one is odd."""


@dataclass(frozen=True)
class Filtered:
    """A cohort's packets without the rows that are left out."""

    packets: tuple[Packet, ...]
    left_out: Mapping[int, int] = field(default_factory=dict)
    """How many rows, by client."""
    unjudged: int = 0
    """Rows of classes that too few clients sent: they stay."""


@dataclass(frozen=True)
class RowFilter:
    """The centre of a class is the median, number by number, of its clients' mean rows, and its usual distance the
    median of the distances of rows to it. Every client has the same say in both, however many rows it sent.

    A row is left out if it is `factor` times further from the centre of its class than is usual, or, with `margin`, if
    it is so many times nearer to the centre of another class.
    """

    factor: float = 2.0
    margin: float | None = None

    @property
    def told(self) -> str:
        """As a table names it."""
        near = "" if self.margin is None else f", or {self.margin:g} times nearer to another"
        return f"{self.factor:g} times the usual distance from their class{near}"

    def covers(self, phase: Phase) -> bool:
        """Whether clients send rows with labels in a phase, which the server puts together."""
        names = (*phase.row_uploads, phase.label_upload)
        return bool(phase.row_uploads) and all(name and phase.uploads[name].combine is Combine.CONCAT for name in names)

    def applied(self, gathered: Gathered) -> Filtered:
        """The packets without rows that are far off."""
        phase, packets = gathered.phase, gathered.packets
        if not packets:
            return Filtered(packets)
        numbers = [phase.does.decoded(dict(packet.arrays)) for packet in packets]
        labels = [classes_of(each[phase.label_upload]) for each in numbers]
        if any(each is None for each in labels):  # Masks, or labels that are no classes.
            return Filtered(packets, unjudged=sum(len(each[phase.label_upload]) for each in numbers))
        classes = torch.cat([each for each in labels if each is not None])
        owners = torch.cat([torch.full_like(each, place) for place, each in enumerate(labels) if each is not None])
        kept = torch.ones(len(classes), dtype=torch.bool, device=classes.device)
        judged = torch.zeros_like(kept)
        for name in phase.row_uploads:
            rows = torch.cat([each[name].detach().flatten(1).double() for each in numbers])
            usual, known = self._is_usual(rows, classes, owners)
            kept &= usual
            judged |= known
        mine = [kept[owners == place] for place in range(len(packets))]
        cut = [_cut(packet, phase, stay) for packet, stay in zip(packets, mine, strict=True)]
        lost = {packet.sender: int((~stay).sum()) for packet, stay in zip(packets, mine, strict=True)}
        return Filtered(tuple(cut), {client: rows for client, rows in lost.items() if rows}, int((~judged).sum()))

    def _is_usual(self, rows: Tensor, classes: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        """Of every row whether it may stay, and whether its class could be judged."""
        centres: dict[int, Tensor] = {}
        usual = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
        for label in torch.unique(classes).tolist():
            mine = classes == label
            whose = owners[mine]
            if len(torch.unique(whose)) < _FEWEST:
                continue
            centres[label] = _centre(rows[mine], whose)
            distances = (rows[mine] - centres[label]).norm(dim=1)
            usual[mine] = distances <= self.factor * _median_by_client(distances, whose)
        known = torch.isin(classes, torch.tensor(list(centres), device=classes.device, dtype=classes.dtype))
        if self.margin is not None and len(centres) > 1:
            usual &= ~known | ~self._belongs_elsewhere(rows, classes, centres)
        return usual, known

    def _belongs_elsewhere(self, rows: Tensor, classes: Tensor, centres: Mapping[int, Tensor]) -> Tensor:
        """Of every row whether it is much nearer to the centre of another class."""
        own = torch.full((len(rows),), torch.inf, dtype=torch.float64, device=rows.device)
        nearest = own.clone()
        for label, centre in centres.items():
            distances = (rows - centre).norm(dim=1)
            own = torch.where(classes == label, distances, own)
            nearest = torch.where(classes == label, nearest, torch.minimum(nearest, distances))
        return own > (self.margin or 1.0) * nearest


def classes_of(labels: Any) -> Tensor | None:
    """The class of every row: its number, or the one of the largest share; None where labels are neither."""
    if not isinstance(labels, Tensor) or (labels.dim() == 2 and not labels.shape[1]):
        return None
    if labels.dim() == 1 and not labels.is_floating_point():
        return labels.long()
    return labels.argmax(1) if labels.dim() == 2 and labels.is_floating_point() else None


def _centre(rows: Tensor, owners: Tensor) -> Tensor:
    means = torch.stack([rows[owners == client].mean(0) for client in torch.unique(owners)])
    ordered = means.sort(0).values
    return (ordered[(len(means) - 1) // 2] + ordered[len(means) // 2]) / 2


def _median_by_client(distances: Tensor, owners: Tensor) -> Tensor:
    """The middle of some distances, where those of one client together weigh as much as those of another."""
    ordered, order = distances.sort(stable=True)
    _, place, counts = torch.unique(owners, return_inverse=True, return_counts=True)
    passed = (1 / counts[place].double())[order].cumsum(0)
    return ordered[int((passed < passed[-1] / 2 - 1e-9).sum())]


def _cut(packet: Packet, phase: Phase, kept: Tensor) -> Packet:
    if bool(kept.all()):
        return packet
    rows = {name: _rows(packet.arrays[name], kept) for name, upload in phase.uploads.items() if upload.rows}
    return dataclasses.replace(packet, arrays={**packet.arrays, **rows})


def _rows(value: Any, kept: Tensor) -> Any:
    if isinstance(value, Tensor):
        return value[kept.to(value.device)]
    return {name: _rows(part, kept) for name, part in value.items()}
