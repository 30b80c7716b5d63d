"""What an attacker learns from: pairs of what is sent and what it was made of, from rows of its own.

They are made by the method's own code with what was broadcast in the recorded round, so that every defence is in them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.phase import Phase
from fewfed.privacy.attacks.case import Case, Exchanged, some
from fewfed.privacy.noiseless import without_noise
from fewfed.privacy.shared_rows import MOST_TURNS, SharedRows, imitated, joined

_HELD = 0.2
"""The part of the attacker's rows by which it chooses settings."""
_ENOUGH = 0.25
_ROWS_ON_HOST, _ROWS_ON_GPU = 1000, 10_000


@dataclass(frozen=True)
class Pairs:
    """Flat, on one device: what was sent, and the mean of the inputs behind it."""

    sent: Tensor
    inputs: Tensor
    labels: Tensor | None
    behind: int
    """How many rows are behind each."""
    origins: Tensor
    """Their numbers in `rows`, -1 where there are fewer."""
    rows: Tensor

    def __len__(self) -> int:
        return len(self.sent)

    def part(self, most: int) -> Pairs:
        """The first of them."""
        labels = None if self.labels is None else self.labels[:most]
        return Pairs(self.sent[:most], self.inputs[:most], labels, self.behind, self.origins[:most], self.rows)

    @classmethod
    def of(cls, rows: SharedRows, device: torch.device) -> Pairs:
        rows = SharedRows(
            rows.sent.to(device),
            None if rows.labels is None else rows.labels.to(device),
            rows.origins.to(device),
            rows.rows.to(device),
        )
        behind = max(1, round(float(rows.present.sum(1).double().mean()))) if len(rows) else 1
        own = flat(rows.rows.x, device)
        return cls(flat(rows.sent, device), flat(rows.sources, device), rows.labels, behind, rows.origins, own)


@dataclass(frozen=True)
class Known:
    """All that an attacker knows of an exchange, and what it can do with its own rows."""

    case: Case
    exchanged: Exchanged
    phase: Phase
    learn: Pairs
    held: Pairs
    """From other rows than `learn`, to choose settings by."""
    rows: Examples
    """Those of its rows that `learn` is from."""
    kept: Examples
    """The others, that `held` is from."""
    sent_shape: tuple[int, ...]
    victims: Tensor
    """What clients sent, flat."""
    labels: Tensor | None
    """As they were sent with it."""
    places: Tensor | None = None
    """Who sent each, and as its how manieth: for attackers who see names."""
    own: int = 0
    """The last so many of the victims are the first of `held`: an attacker sees by them how far off it is."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self.rows.x.shape[1:])

    @property
    def device(self) -> torch.device:
        return self.case.device


def flat(values: Tensor, device: torch.device | str) -> Tensor:
    """One row of single-precision numbers for each, whatever was sent."""
    return values.detach().to(device=device, dtype=torch.float32).reshape(len(values), math.prod(values.shape[1:]))


def pairs_wanted(case: Case) -> int:
    """How many pairs an attacker learns from, as far as its rows give so many."""
    return int(case.effort * (_ROWS_ON_GPU if case.device.type == "cuda" else _ROWS_ON_HOST))


def known_of(case: Case, exchanged: Exchanged, victims: SharedRows) -> Known:
    """What an attacker knows that received what was broadcast and reads what some clients sent."""
    own, order = case.held, torch.randperm(len(case.held), generator=torch.Generator().manual_seed(case.seed))
    cut = max(1, int(_HELD * len(own)))
    kept, rest = own.rows(order[:cut]), own.rows(order[cut:])
    return Known(
        case,
        exchanged,
        case.phase(exchanged.round, exchanged.phase),
        *learn_and_held(case, exchanged, rest, kept),
        rest,
        kept,
        tuple(victims.sent.shape[1:]),
        flat(victims.sent, case.device),
        None if victims.labels is None else victims.labels.to(case.device),
        victims.places,
    )


def learn_and_held(case: Case, exchanged: Exchanged, rows: Examples, kept: Examples) -> tuple[Pairs, Pairs]:
    """Pairs to learn from and pairs to choose settings by. In another round the same clients are imitated again."""
    learn = imitations(case, exchanged, rows, pairs_wanted(case))
    return Pairs.of(learn, case.device), held_of(case, exchanged, kept)


def quiet_of(known: Known) -> Pairs | None:
    """The pairs to learn from as they would be sent without the noise that protects them; None where none does."""
    case = replace(known.case, job=without_noise(known.case.job))
    found = Pairs.of(imitations(case, known.exchanged, known.rows, pairs_wanted(case)), case.device)
    return None if found.sent.shape == known.learn.sent.shape and torch.equal(found.sent, known.learn.sent) else found


def held_of(case: Case, exchanged: Exchanged, kept: Examples) -> Pairs:
    """Pairs to choose settings by alone."""
    return Pairs.of(imitations(case, exchanged, kept, max(20, pairs_wanted(case) // 4), seed=1), case.device)


def imitations(case: Case, exchanged: Exchanged, rows: Examples, count: int, *, seed: int = 0) -> SharedRows:
    """About `count` rows as clients with these rows would have sent them in an exchange.

    Clients with rows of all classes may send hardly any (averages of five rows of one class, say), where clients with
    few classes do; then they are imitated with rows of one class each. No client is imitated twice for one attacker,
    with another class or another `seed`: the noise of both would be the same, and settings be chosen as if it were.
    """
    phase, clock = case.phase(exchanged.round, exchanged.phase), case.clock(exchanged.round)
    shared = tree.to(exchanged.broadcast, case.device)
    personal = next(iter(exchanged.personal.values()), None)
    personal = None if personal is None else tree.to(personal, case.device)
    rows, classes, salt = rows.to(case.device), case.job.task.classes, 1000 * case.seed + seed

    def drawn(those: Examples, most: int, turn: int) -> SharedRows:
        first = (seed * (1 + classes) + turn) * MOST_TURNS
        return imitated(case.job, phase, clock, shared, those, most, personal=personal, seed=salt, first=first)

    found = drawn(rows, count, 0)
    if len(found) >= _ENOUGH * count or not classes:
        return some(found, count, case.seed)
    parts = []
    for label in torch.unique(rows.y).tolist():
        of_class = (rows.y == label).nonzero().flatten()
        one = drawn(rows.rows(of_class), count // classes + 1, 1 + label)
        origins = torch.where(one.present, of_class.to(one.origins.device)[one.origins.clamp(min=0)], -1)
        parts.append(SharedRows(one.sent, one.labels, origins, rows))
    found = max([found, joined(parts)], key=len)
    return some(found, count, case.seed)
