"""What the same sites sent in several rounds, row by row: at the same place, with the same labels.

Whoever sees names can put these together. Whether the same rows of data are behind them it is not told; of the clients
that it plays itself, through the same rounds, it knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed.engine.packet import Packet
from fewfed.phase import Phase
from fewfed.privacy.attacks.attack import Tell
from fewfed.privacy.attacks.case import Exchanged
from fewfed.privacy.attacks.pairs import Known, Pairs, flat, held_of, learn_and_held
from fewfed.privacy.shared_rows import label_upload, row_upload

_MOST_ROUNDS = 12
_MOST_NUMBERS = 1 << 28
"""Of all rows in all rounds together; two rounds are looked at even if they have more."""


@dataclass(frozen=True)
class Series:
    """Rows of one exchange, and the same places in the packets of other rounds. The exchange itself comes last."""

    rounds: tuple[int, ...]
    """Counted from 1."""
    learn: tuple[Pairs, ...]
    held: tuple[Pairs, ...]
    """By round: what the attacker's own clients send, the same ones in every round."""
    victims: tuple[Tensor, ...]
    """By round, as `Known.victims`; zeros where a client was not there."""
    there: Tensor
    """(rows, rounds): whether it was."""

    def sets(self) -> Iterator[tuple[list[int], Tensor]]:
        """Places in `rounds`, and the rows that were sent in exactly these; those with most rows first."""
        patterns, which = torch.unique(self.there, dim=0, return_inverse=True)
        order = torch.bincount(which).argsort(descending=True, stable=True).tolist()
        for number in order:
            yield patterns[number].nonzero().flatten().tolist(), (which == number).nonzero().flatten()


def series_of(known: Known, tell: Tell, *, learns: bool = True) -> Series | str:
    """All that is known of the victims' rows in other recorded rounds, or why there is nothing. Who does not learn from
    pairs has those of `known` in every round."""
    exchanged, case, places = known.exchanged, known.case, known.places
    if places is None:
        return "who sent which row is not known"
    others = [round for round in case.record.rounds if round != exchanged.round]
    if not others:
        return "only one round was recorded, or is looked at: there is nothing to put together"
    rounds, learn, held, victims, there = [], [], [], [], []
    sites, seldom = len(known.victims) - known.own, True
    for round in _spread(others, _room(known) - 1):
        tell(f"the same rows in round {round}")
        found = next((one for one in case.record.exchanges(round) if one.phase == exchanged.phase), None)
        if found is None or not row_upload(case.phase(round, found.phase)):
            continue
        rows, aligned = _in(found, known, places[:sites])
        if not bool(aligned.any()):
            continue
        seldom = False
        pairs = (
            learn_and_held(case, found, known.rows, known.kept)
            if learns
            else (known.learn, held_of(case, found, known.kept))
        )
        if not all(_alike(one, own) for one, own in zip(pairs, (known.learn, known.held), strict=True)):
            continue  # Its own clients send other rows then: there is nothing that it could learn from.
        rounds.append(round)
        learn.append(pairs[0])
        held.append(pairs[1])
        victims.append(torch.cat([rows, pairs[1].sent[: known.own]]))
        there.append(aligned)
    if not rounds:
        return (
            f"no site that sent rows in round {exchanged.round} sent as many with the same labels in another one that "
            "is looked at"
            if seldom
            else "clients that the attacker plays send other rows, or as many of other labels, in every other round"
        )
    present = torch.stack([*there, torch.ones(sites, dtype=torch.bool)], 1)
    # Its own rows were there as often as those of the sites, or what it learns from them would be too good.
    like = torch.arange(known.own) * sites // max(1, known.own)
    return Series(
        (*rounds, exchanged.round),
        (*learn, known.learn),
        (*held, known.held),
        (*victims, known.victims),
        torch.cat([present, present[like]]),
    )


def _room(known: Known) -> int:
    """How many rounds are looked at, at most."""
    rows = len(known.learn) + len(known.held) + len(known.victims)
    return max(2, min(_MOST_ROUNDS, _MOST_NUMBERS // max(1, rows * known.victims.shape[1])))


def _spread(rounds: list[int], most: int) -> list[int]:
    """So many of them, the first among them: models that differ most tell most."""
    if len(rounds) <= most:
        return rounds
    return [rounds[number * len(rounds) // most] for number in range(most)]


def _in(found: Exchanged, known: Known, places: Tensor) -> tuple[Tensor, Tensor]:
    """What was sent at these places in another round, and which of them were: where their sender sent as many rows with
    the same labels."""
    phase, now = known.case.phase(found.round, found.phase), known.exchanged
    rows = torch.zeros(len(places), known.victims.shape[1], device=known.device)
    aligned = torch.zeros(len(places), dtype=torch.bool)
    for client in torch.unique(places[:, 0]).tolist():
        if client not in found.packets:
            continue
        sent, labels = _read(phase, found.packets[client])
        usual, usual_labels = _read(known.phase, now.packets[client])
        if sent.shape == usual.shape and _same(labels, usual_labels):
            mine = places[:, 0] == client
            rows[mine.to(rows.device)] = flat(sent, known.device)[places[mine, 1].to(rows.device)]
            aligned |= mine
    return rows, aligned


def _read(phase: Phase, packet: Packet) -> tuple[Tensor, Tensor | None]:
    """The rows in a packet as numbers, and their labels."""
    numbers, labels = phase.does.decoded(dict(packet.arrays)), label_upload(phase)
    return numbers[row_upload(phase)], numbers[labels] if labels else None


def _alike(one: Pairs, other: Pairs) -> bool:
    return one.sent.shape == other.sent.shape and _same(one.labels, other.labels)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    return (one is None and other is None) or (one is not None and other is not None and torch.equal(one, other))
