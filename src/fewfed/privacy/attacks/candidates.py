"""The attacker that has the rows already, and asks which of them are behind what was sent.

What is sent of several rows is about the mean of what would be sent of each. So whoever has candidates knows what each
would be sent as, and solves for how much of each is in a row that was sent, all candidates of its class together: ridge
regression on candidates, not on examples. A reconstruction of the input, which averages hide, is never made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fewfed.data.examples import Examples
from fewfed.privacy.attacks.alone import combined, is_class, sent_alone
from fewfed.privacy.attacks.attack import Tell
from fewfed.privacy.attacks.case import Exchanged
from fewfed.privacy.attacks.finding import Threat
from fewfed.privacy.attacks.over_rounds import SEES
from fewfed.privacy.attacks.pairs import Known
from fewfed.privacy.attacks.rebuilders import READS
from fewfed.privacy.attacks.series import series_of

_PENALTIES = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
"""As parts of the mean of the products' eigenvalues."""
_APART = (0.5, 0.8, 0.95, 1.0)
"""How much is made of what rounds have apart."""
_MOST_NUMBERS = 1 << 27
"""Of what all candidates would be sent as, in all rounds."""
_LARGEST = 2048
"""Candidates of a class, or numbers of a row, of which one is larger: products of more take long."""
_MOST_SETS = 20

HOLDS = (
    "the candidate rows, the sites' own among them, with their labels; rows of the same kind that nobody trained on, "
    "the network, and the method with its defences"
)


class Looked(NamedTuple):
    """How much of each candidate is in each row that was sent; minus infinity where it cannot be behind it."""

    shares: Tensor
    rounds: int
    """Rounds that were put together, at most."""


@dataclass(frozen=True)
class ByCandidates:
    """By one round, or by all recorded rounds in which a site sent as many rows with the same labels."""

    several: bool = False

    @property
    def name(self) -> str:
        return "candidates, rounds" if self.several else "candidates"

    @property
    def what(self) -> str:
        return "which of all candidates are in a row sent, by what each would be sent as" + (
            " in all recorded rounds together" if self.several else ""
        )

    @property
    def threat(self) -> Threat:
        if self.several:
            return Threat("the server, from which names are not hidden, where it has the candidates", SEES, HOLDS)
        return Threat("the server, or a site that the rows are handed to, where it has the candidates", READS, HOLDS)

    def look(self, known: Known, candidates: Examples, tell: Tell) -> Looked | str:
        """Of each of the victims' rows and each candidate."""
        series = series_of(known, tell, learns=False) if self.several else None
        if isinstance(series, str):
            return series
        rounds = (known.exchanged.round,) if series is None else series.rounds
        # The attacker's own rows are candidates too: by those that its own clients send it sees how well it looks.
        pool = Examples(
            torch.cat([candidates.x.to(known.device), known.kept.x.to(known.device)]),
            torch.cat([candidates.y.to(known.device), known.kept.y.to(known.device)]),
        )
        most = max(256, _MOST_NUMBERS // (len(pool) * len(rounds)))
        marks: list[Tensor] = []
        for round in rounds:
            tell(f"what {len(pool)} candidates would be sent as in round {round}")
            found = sent_alone(known.case, _exchange(known, round), pool, most)
            if isinstance(found, str):
                return found
            marks.append(found)
        sent = [known.victims] if series is None else series.victims
        held = [known.held.sent] if series is None else [one.sent for one in series.held]
        views = [_View(*(combined(each, most) for each in one)) for one in zip(marks, sent, held, strict=True)]
        finder = _Finder(known, pool, len(candidates), views)
        everybody = torch.arange(len(known.victims), device=known.device)
        shares, right = finder.shares([len(rounds) - 1], everybody)
        for together, rows in [] if series is None else list(series.sets())[:_MOST_SETS]:
            tell(f"{len(together)} rounds together")
            again, better = finder.shares(together, rows.to(known.device))
            if better >= right:
                shares[rows.to(known.device)] = again
        return Looked(shares, len(rounds))


class _View(NamedTuple):
    """One round."""

    marks: Tensor
    """What each candidate would be sent as."""
    sent: Tensor
    held: Tensor
    """What the attacker's own clients send."""


@dataclass(frozen=True)
class _Finder:
    known: Known
    pool: Examples
    count: int
    """The first so many of the pool are candidates; the others are the attacker's own rows."""
    views: Sequence[_View]

    def shares(self, rounds: list[int], rows: Tensor) -> tuple[Tensor, float]:
        """Of some of the victims' rows, by these rounds; and how well its own rows are found so."""
        known, own, views = self.known, len(self.known.held), [self.views[each] for each in rounds]
        asked = [torch.cat([one.held, one.sent[rows]]) for one in views]
        labels = self._labels(rows)
        best, most = -1.0, torch.zeros(0)
        for apart in _APART if len(views) > 1 else _APART[:1]:
            for each in self._solved([one.marks for one in views], asked, labels, apart):
                right = _found(each[:own], known.held.origins, self.count)
                if right > best:
                    best, most = right, each[own:, : self.count]
        return most, best

    def _labels(self, rows: Tensor) -> Tensor | None:
        held, sent = self.known.held.labels, self.known.labels
        if held is None or sent is None or not is_class(self.known.case, sent) or not is_class(self.known.case, held):
            return None
        return torch.cat([held, sent[rows]])

    def _solved(self, marks: list[Tensor], asked: list[Tensor], labels: Tensor | None, apart: float) -> list[Tensor]:
        """By penalty, the shares of the whole pool in each row that is asked for."""
        device, size = self.known.device, len(self.pool)
        shape = (len(asked[0]), size)
        found = [torch.full(shape, -torch.inf, dtype=torch.float64, device=device) for _ in _PENALTIES]
        kinds = [None] if labels is None else torch.unique(labels).tolist()
        for kind in kinds:
            those = torch.arange(size, device=device) if kind is None else (self.pool.y == kind).nonzero().flatten()
            rows = slice(None) if kind is None else (labels == kind).nonzero().flatten()
            if not len(those):
                continue
            mixed = _unmixed([each[those] for each in marks], [each[rows] for each in asked], apart)
            for one, shares in zip(found, mixed, strict=True):
                block = one[rows]
                block[:, those] = shares
                one[rows] = block
        return found


def _unmixed(marks: list[Tensor], asked: list[Tensor], apart: float) -> list[Tensor]:
    """By penalty, ridge regressions of rows on the marks of candidates, rounds side by side. `apart`: how much is made
    of what rounds have apart, beside their mean."""
    parts, goals = [], []
    for mark, row in zip(marks, asked, strict=True):
        middle = mark.double().mean(0)
        own, goal = mark.double() - middle, row.double() - middle
        # Rounds count alike, however long rows have become.
        scale = goal.square().mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
        parts.append(own / scale)
        goals.append(goal / scale)
    a, b = _side_by_side(parts, apart), _side_by_side(goals, apart)
    if min(a.shape) > _LARGEST:
        a, b = combined(a, _LARGEST), combined(b, _LARGEST)
    if len(a) <= a.shape[1]:
        values, vectors = torch.linalg.eigh(a @ a.T)
        along, back = (b @ a.T) @ vectors, vectors
    else:
        values, vectors = torch.linalg.eigh(a.T @ a)
        along, back = b @ vectors, a @ vectors
    values = values.clamp(min=0)
    size = values.mean().clamp(min=torch.finfo(torch.float32).tiny)
    return [(along / (values + penalty * size)) @ back.T for penalty in _PENALTIES]


def _side_by_side(rounds: list[Tensor], apart: float) -> Tensor:
    """0.5 leaves rounds as they are; 1 leaves out what they have in common, and so all noise that stays."""
    middle = torch.stack(rounds).mean(0)
    return torch.cat([apart * (one - middle) + (1 - apart) * middle for one in rounds], 1)


def _found(shares: Tensor, origins: Tensor, first: int) -> float:
    """How well sources of known rows are found, by the likeliest candidate and by as many as there are sources."""
    there = origins >= 0
    marks = torch.zeros_like(shares, dtype=torch.bool)
    for number, (row, present) in enumerate(zip(origins, there, strict=True)):
        marks[number, first + row[present]] = True
    named = marks.gather(1, shares.argmax(1, keepdim=True)).double().mean()
    return float(named + among_likeliest(shares, marks).mean())


def among_likeliest(shares: Tensor, sources: Tensor) -> Tensor:
    """Of each row, which part of its sources is among as many likeliest candidates."""
    count, most = sources.sum(1), int(sources.sum(1).max())
    likeliest = shares.topk(most, 1).indices
    within = torch.arange(most, device=shares.device) < count[:, None]
    return (sources.gather(1, likeliest) & within).sum(1).double() / count.clamp(min=1)


def _exchange(known: Known, round: int) -> Exchanged:
    if round == known.exchanged.round:
        return known.exchanged
    return next(one for one in known.case.record.exchanges(round) if one.phase == known.exchanged.phase)
