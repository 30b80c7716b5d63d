"""All recorded rounds of a site together: noise that is drawn anew averages out, and averages of other groups each time
say together what none of them says alone.

The attacker knows neither which rows of two rounds belong together nor which are in a group. It plays sites with rows
of its own through all rounds, by the method's own code, and learns from them how much to make of what it sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fewfed import tree
from fewfed.data.examples import Examples
from fewfed.engine.turn import Member
from fewfed.privacy.attacks import intervals, joint, ridge, similarity
from fewfed.privacy.attacks.attack import Tell
from fewfed.privacy.attacks.case import Case, Exchanged
from fewfed.privacy.attacks.finding import Finding, Measure, Threat
from fewfed.privacy.attacks.matching import Directions, Likeness
from fewfed.privacy.attacks.pairs import Pairs, flat, imitations, pairs_wanted
from fewfed.privacy.attacks.rebuilders import LEARNS, seen
from fewfed.privacy.shared_rows import SharedRows, row_upload, sent_by

NAME = "rounds"
THREAT = Threat(
    "the server, or a site that the rows are handed to in every round",
    "the rows that sites sent in all recorded rounds, by site, and the model that was sent out in each",
    LEARNS + "; and, to find rows, candidates among which they are",
)
_MOST_ROUNDS = 12
"""The last ones: each costs a regression."""
_PLAYED = 16
_LEAST_PLAYED = 10
_ENOUGH = 0.25
_AXES = (8, 16, 32, 64, 128)
_INSIDE = (0.1, 0.5, 0.95)
"""How probably a row that a site has is behind something it sends in a round: what is tried."""
_HEATS = (1.0, 4.0, 16.0)
_WEIGHTS = (0.1, 0.3, 1.0)
_MOST_CANDIDATES = 10_000


@dataclass(frozen=True)
class Sent:
    """What a site sent in a round, rebuilt, and the truth about it."""

    rebuilt: Tensor
    sources: Tensor
    origins: Tensor
    """Numbers of candidates, -1 where there are fewer."""


Sites = Mapping[int, Sent]


@dataclass(frozen=True)
class Seen:
    """A round: what real sites sent, and those that the attacker played."""

    round: int
    real: Sites
    played: Sites

    def known(self) -> Sent:
        """All that the attacker played, of which it knows the truth."""
        every = list(self.played.values())
        wide = max(one.origins.shape[1] for one in every)
        return Sent(
            torch.cat([one.rebuilt for one in every]),
            torch.cat([one.sources for one in every]),
            torch.cat([_padded(one.origins, wide) for one in every]),
        )


def findings(case: Case, attack: str, tell: Tell) -> list[Finding]:
    """Of every phase in which sites sent rows in two recorded rounds or more."""
    phases: dict[str, list[int]] = {}
    for round in case.record.rounds:
        for phase in case.job.method.phases(case.clock(round)):
            if row_upload(phase):
                phases.setdefault(phase.name, []).append(round)
    return [
        found
        for phase, rounds in phases.items()
        if len(rounds) > 1
        for found in _of(case, attack, phase, rounds[-max(2, int(_MOST_ROUNDS * max(1.0, case.effort))) :], tell)
    ]


def _of(case: Case, attack: str, phase: str, rounds: list[int], tell: Tell) -> list[Finding]:
    candidates = _Candidates(case)
    own = _Own.of(case)
    seen_rounds = []
    for exchanged in _exchanges(case, phase, rounds):
        tell(f"{NAME}: round {exchanged.round}")
        one = _seen(case, exchanged, own, candidates)
        if one is not None:
            seen_rounds.append(one)
    often = [client for client in candidates.clients if sum(client in one.real for one in seen_rounds) > 1]
    if not often:
        return []
    tell(f"{NAME}: {len(seen_rounds)} rounds together")
    real = [replace(one, real={c: found for c, found in one.real.items() if c in often}) for one in seen_rounds]
    along = Directions.of(own.x, max(_AXES))
    measures = _measures(real, own.x, candidates.filled(), along)
    note = (
        f"rounds {rounds[0]} to {rounds[-1]}, {len(often)} sites that sent in two of them or more; rebuilt by ridge "
        "regression round by round; learnt from sites that the attacker played with rows of its own"
    )
    return [Finding(attack, NAME, THREAT, rounds[-1], phase, measures, note)]


def _exchanges(case: Case, phase: str, rounds: Sequence[int]) -> Iterator[Exchanged]:
    for round in rounds:  # One at a time: packets are many and large.
        yield from (one for one in case.record.exchanges(round) if one.phase == phase and one.packets)


@dataclass(frozen=True)
class _Own:
    """The attacker's rows: to learn to rebuild from, and to play sites with."""

    learn: Examples
    play: Examples
    sites: tuple[Tensor, ...]
    """Numbers of rows of `play`: sites of the usual size with rows of all classes."""
    narrow: tuple[Tensor, ...]
    """The same with rows of one class each: sites with rows of all may have nothing to send."""
    x: Tensor
    """All rows, flat; those of `play` first."""

    @classmethod
    def of(cls, case: Case) -> _Own:
        rows, random = case.held.to(case.device), torch.Generator().manual_seed(case.seed + 29)
        order = torch.randperm(len(rows), generator=random).to(case.device)
        play, learn = rows.rows(order[: len(order) // 2]), rows.rows(order[len(order) // 2 :])
        sizes = sorted(case.job.federation.size(client) for client in range(min(len(case.job.federation), 100)))
        size = max(1, sizes[len(sizes) // 2])
        groups = [(play.y == label).nonzero().flatten().cpu() for label in range(case.job.task.classes)]
        groups = [group for group in groups if len(group)] or [torch.arange(len(play))]

        def drawn(numbers: Tensor) -> Tensor:
            return numbers[torch.randperm(len(numbers), generator=random)[:size]]

        return cls(
            learn,
            play,
            tuple(drawn(torch.arange(len(play))) for _ in range(_PLAYED)),
            tuple(drawn(groups[number % len(groups)]) for number in range(_PLAYED)),
            torch.cat([flat(play.x, case.device), flat(learn.x, case.device)]),
        )


class _Candidates:
    """All rows among which sources are looked for, and where those of each site begin."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._first: dict[int, int] = {}
        self._rows: list[Tensor] = []
        self._count = 0

    @property
    def clients(self) -> list[int]:
        return list(self._first)

    def numbered(self, client: int, found: SharedRows) -> Tensor:
        """The origins of what a site sent, as numbers of candidates."""
        if client not in self._first:
            self._add(client, found.rows.x)
        origins = found.origins.to(self._case.device)
        return torch.where(origins >= 0, origins + self._first[client], -1)

    def filled(self) -> Tensor:
        """With the rows of sites that sent nothing, up to ten thousand in all."""
        for client in range(len(self._case.job.federation)):
            if self._count >= _MOST_CANDIDATES:
                break
            if client not in self._first:
                self._add(client, self._case.job.federation.examples(client).x[: _MOST_CANDIDATES - self._count])
        return torch.cat(self._rows)

    def _add(self, client: int, x: Tensor) -> None:
        self._first[client] = self._count
        self._rows.append(flat(x, self._case.device))
        self._count += len(x)


def _seen(case: Case, exchanged: Exchanged, own: _Own, candidates: _Candidates) -> Seen | None:
    """A round as the attacker sees it; None where its own rows give too little to learn from."""
    device = case.device
    real = {client: found for client, found in case.of_sites(exchanged).items() if len(found)}
    if not real:
        return None
    wanted = _ENOUGH * _PLAYED * sum(map(len, real.values())) / len(real)
    played = _played(case, exchanged, own.play, own.sites)
    if sum(map(len, played.values())) < wanted:
        played = max(
            [played, _played(case, exchanged, own.play, own.narrow)], key=lambda each: sum(map(len, each.values()))
        )
    learn = Pairs.of(imitations(case, exchanged, own.learn, pairs_wanted(case)), device)
    pairs = {number: Pairs.of(found, device) for number, found in played.items() if len(found)}
    if min(len(learn), sum(map(len, pairs.values()))) < _LEAST_PLAYED:
        return None
    model = ridge.chosen(
        seen(learn.sent, learn.labels),
        learn.inputs,
        torch.cat([seen(one.sent, one.labels) for one in pairs.values()]),
        torch.cat([one.inputs for one in pairs.values()]),
    )
    low, high = float(own.x.min()), float(own.x.max())

    def rebuilt(sent: Tensor, labels: Tensor | None) -> Tensor:
        labels = None if labels is None else labels.to(device)
        return model(seen(flat(sent, device), labels)).clamp(low, high)

    return Seen(
        exchanged.round,
        {
            client: Sent(
                rebuilt(found.sent, found.labels),
                flat(found.sources, device),
                candidates.numbered(client, found),
            )
            for client, found in real.items()
        },
        {number: Sent(rebuilt(one.sent, one.labels), one.inputs, one.origins) for number, one in pairs.items()},
    )


def _played(case: Case, exchanged: Exchanged, rows: Examples, sites: Sequence[Tensor]) -> dict[int, SharedRows]:
    """What sites with these rows would have sent. Their numbers are nobody's, and the same in every round."""
    job, phase, clock = case.job, case.phase(exchanged.round, exchanged.phase), case.clock(exchanged.round)
    shared = tree.to(exchanged.broadcast, case.device)
    personal = tree.to(next(iter(exchanged.personal.values()), {}), case.device)
    state, found = job.method.client_init(job.setup), {}
    for number, held in enumerate(sites):
        held = held.to(case.device)
        member = Member(len(job.federation) + number, personal, state)
        one = sent_by(job, phase, clock, shared, member, rows.rows(held))
        origins = torch.where(one.present, held[one.origins.clamp(min=0).to(held.device)].to(one.origins.device), -1)
        found[number] = SharedRows(one.sent, one.labels, origins, rows)
    return found


@dataclass(frozen=True, eq=False)
class _Way:
    """How candidates are scored."""

    likeness: tuple[Likeness, ...]
    """One a round."""
    heat: float = 1.0
    """What logarithms are divided by: axes are not independent, so that they say less than they seem to."""
    inside: float = 1.0
    weight: float = 1.0
    """Of other rounds, where a row of the last one is looked for."""

    def ratios(self, rounds: Sequence[Seen], site: int, candidates: Tensor, played: bool) -> list[tuple[Sent, Tensor]]:
        """Of each round in which a site sent something, what it sent and how likely each candidate is behind it."""
        found = []
        for one, likeness in zip(rounds, self.likeness, strict=True):
            sites = one.played if played else one.real
            if site in sites:
                found.append((sites[site], joint.ratios(likeness, sites[site].rebuilt, candidates) / self.heat))
        return found


def _hits(each: Sequence[tuple[Sent, Tensor]], way: _Way) -> Tensor:
    """Of each row that a site sent in the last of these rounds whether the candidate that is likeliest behind it, and
    behind anything sent in the others, is behind it."""
    last, scores = each[-1]
    if way.weight:
        for _, ratio in each[:-1]:
            scores = scores + way.weight * joint.evidence(ratio, way.inside)
    own = scores.gather(1, last.origins.clamp(min=0)).masked_fill(last.origins < 0, -torch.inf)
    return own.amax(1) >= scores.amax(1)


def _best_way(rounds: Sequence[Seen], own: Tensor, along: Directions, last: int) -> _Way:
    """What names most rows of the sites that the attacker played, of which the last so many rounds are looked at; 0 =
    all."""
    known = [one.known() for one in rounds]
    sites = sorted({site for one in rounds for site in one.played})
    right: dict[_Way, float] = {}
    for count in sorted({min(axes, len(along.axes)) for axes in _AXES}):
        plain = _Way(tuple(Likeness.of(one.rebuilt, one.origins, along.first(count)) for one in known), weight=0.0)
        cold = [plain.ratios(rounds, site, own, True)[-last:] for site in sites]
        weighed = [] if last == 1 else [(h, i, w) for h in _HEATS for i in _INSIDE for w in _WEIGHTS]
        for way in (plain, *(replace(plain, heat=heat, inside=i, weight=weight) for heat, i, weight in weighed)):
            each = [[(sent, ratio / way.heat) for sent, ratio in one] for one in cold]
            right[way] = sum(float(_hits(one, way).double().mean()) for one in each)
    # Of equals the first, which has the fewest axes and leaves other rounds alone.
    return max(right, key=lambda way: right[way])


def _measures(single: Sequence[Seen], own: Tensor, candidates: Tensor, along: Directions) -> tuple[Measure, ...]:
    sites = sorted({site for one in single for site in one.real})
    together = _together(single, along)
    measures = []
    for words, last, rounds in (("all rounds", 0, together), ("its last round alone", 1, single)):
        way = _best_way(rounds, own, along, last)
        naming = [way.ratios(rounds, site, candidates, False)[-last:] for site in sites]
        hits = torch.cat([_hits(one, way) for one in naming])
        chance = _mean(
            [similarity.chance_of(row[None], len(candidates)) for one in naming for row in one[-1][0].origins]
        )
        among = f"among {len(candidates)}, by {words}"
        interval = intervals.of_share(int(hits.sum()), len(hits))
        measures.append(
            Measure(f"re-identified {among}", float(hits.double().mean()), *interval, len(hits), chance, 1.0)
        )
        measures.append(_explained(f"R2, by {words}", rounds, sites, own))
    return tuple(measures)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _explained(what: str, rounds: Sequence[Seen], sites: Sequence[int], own: Tensor) -> Measure:
    """R2 of the inputs behind each row of a site's last round."""
    last = [[one.real[site] for one in rounds if site in one.real][-1] for site in sites]
    rebuilt, sources = torch.cat([one.rebuilt for one in last]), torch.cat([one.sources for one in last])
    errors = similarity.squared_errors(rebuilt, sources)
    guessed = similarity.squared_errors(own.mean(0).expand_as(sources), sources)
    low, high = intervals.of_ratio(errors, guessed)
    value = 1 - float(errors.sum()) / float(guessed.sum().clamp(min=1e-300))
    return Measure(what, value, 1 - high, 1 - low, len(errors), 0.0, 1.0)


def _together(rounds: Sequence[Seen], along: Directions) -> Sequence[Seen]:
    """The same rounds, each reconstruction put together with those of other rounds that have its source; as they are
    where that makes those worse of which the attacker knows the truth."""
    blurs = [joint.Blur.of(one.rebuilt, one.sources, along) for one in (each.known() for each in rounds)]
    in_place = _in_place(rounds)

    def joined(number: int, sites: Sequence[Sites]) -> dict[int, Sent]:
        found = {}
        for site, sent in sites[number].items():
            others = [
                (other[site].rebuilt, blurs[place])
                for place, other in enumerate(sites)
                if place != number and site in other
            ]
            rebuilt = joint.averaged(sent.rebuilt, blurs[number], others, in_place) if others else sent.rebuilt
            found[site] = replace(sent, rebuilt=rebuilt)
        return found

    played, real = [one.played for one in rounds], [one.real for one in rounds]
    made = [Seen(one.round, joined(n, real), joined(n, played)) for n, one in enumerate(rounds)]
    before, after = (
        sum(float(similarity.squared_errors(one.rebuilt, one.sources).sum()) for one in (each.known() for each in part))
        for part in (rounds, made)
    )
    return made if after < before else rounds


def _in_place(rounds: Sequence[Seen]) -> float:
    """How probably rows at the same place of what a played site sent in two rounds are of the same sources."""
    same = all_places = 0
    for number, one in enumerate(rounds):
        for other in rounds[:number]:
            for site in one.played.keys() & other.played.keys():
                pair = (one.played[site].origins, other.played[site].origins)
                for first, second in zip(pair[0].tolist(), pair[1].tolist(), strict=False):
                    same += set(first) == set(second)
                    all_places += 1
    return (same + 0.5) / (all_places + 1)


def _padded(origins: Tensor, wide: int) -> Tensor:
    return torch.nn.functional.pad(origins, (0, wide - origins.shape[1]), value=-1)
