"""Turning what sites sent back into the rows it was made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from fewfed.privacy import pictures
from fewfed.privacy.attacks import entropy, intervals, similarity
from fewfed.privacy.attacks.attack import Tell
from fewfed.privacy.attacks.candidates import ByCandidates, among_likeliest
from fewfed.privacy.attacks.case import Case, Exchanged, some
from fewfed.privacy.attacks.decoders import is_picture
from fewfed.privacy.attacks.finding import Finding, Measure
from fewfed.privacy.attacks.matching import Finds, best_way
from fewfed.privacy.attacks.optimised import ByOptimisation
from fewfed.privacy.attacks.over_rounds import ByRounds
from fewfed.privacy.attacks.pairs import Known, flat, known_of
from fewfed.privacy.attacks.rebuilders import ByConvolutions, ByMinimalDecoder, ByRidge, Rebuilder
from fewfed.privacy.attacks.substitute import BySubstitute
from fewfed.privacy.shared_rows import SharedRows

REBUILDERS: tuple[Rebuilder, ...] = (
    ByRidge(),
    ByMinimalDecoder(),
    ByConvolutions(),
    ByOptimisation(),
    ByRounds(),
    BySubstitute(),
)
CANDIDATES = (ByCandidates(), ByCandidates(several=True))
_MOST_ROWS = 400
_LEAST_PAIRS = 10
_MOST_HELD = 150
_SHOWN = 16


@dataclass(frozen=True)
class Reconstruct:
    """Several attackers on the last recorded round of every phase in which rows are sent. One of them looks at what the
    same sites sent in other recorded rounds too."""

    name: str = "reconstruct"
    title: str = "inputs rebuilt from the rows that sites send"
    rebuilders: Sequence[Rebuilder] = REBUILDERS
    seekers: Sequence[ByCandidates] = CANDIDATES
    """Those that rebuild nothing: they have the rows, and ask which of them it was."""

    def why_not(self, case: Case) -> str:
        return why_no_rows(case)

    def findings(self, case: Case, tell: Tell) -> list[Finding]:
        return [one for exchanged in case.with_rows() for one in self._of(case, exchanged, tell)]

    def _of(self, case: Case, exchanged: Exchanged, tell: Tell) -> list[Finding]:
        tell(f"round {exchanged.round}, phase '{exchanged.phase}': pairs to learn from")
        victims = some(case.shared_rows(exchanged), int(_MOST_ROWS * max(1.0, case.effort)), case.seed)
        known = known_of(case, exchanged, victims)
        if min(len(known.learn), len(known.held)) < _LEAST_PAIRS:
            why = f"an attacker's own rows gave {len(known.learn)} + {len(known.held)} pairs to learn from: too few"
            return [_nothing(self.name, "", exchanged, REBUILDERS[0], why)]
        truth = _Truth.of(known, victims)
        tried = [(one, self._tried(one, known, tell)) for one in self.rebuilders]
        least = _least_error([one for _, one in tried if isinstance(one, _Rebuilt)], truth)
        looked = [self._looked(one, known, victims, truth, tell) for one in self.seekers]
        return looked + [
            _nothing(self.name, one.name, exchanged, one, found)
            if isinstance(found, str)
            else Finding(
                self.name,
                one.name,
                one.threat,
                exchanged.round,
                exchanged.phase,
                truth.measures(found, least),
                f"{one.what}; {len(known.learn)} pairs to learn from\n{entropy.ESTIMATOR}",
                truth.picture(found.inputs),
            )
            for one, found in tried
        ]

    def _looked(self, one: ByCandidates, known: Known, victims: SharedRows, truth: _Truth, tell: Tell) -> Finding:
        """Which of the candidates an attacker says are behind the rows."""
        exchanged = known.exchanged
        tell(f"{one.name}, round {exchanged.round}")
        found = one.look(known, victims.rows, lambda words: tell(f"{one.name}: {words}"))
        if isinstance(found, str):
            return _nothing(self.name, one.name, exchanged, one, found)
        note = f"{one.what}; {len(victims.rows)} candidates, {found.rounds} rounds"
        measures = truth.found(found.shares)
        return Finding(self.name, one.name, one.threat, exchanged.round, exchanged.phase, measures, note)

    def _tried(self, one: Rebuilder, known: Known, tell: Tell) -> _Rebuilt | str:
        """What an attacker makes of the rows, and its errors on rows held out, of which it knows the truth."""
        tell(f"{one.name}, round {known.exchanged.round}")
        if not one.has_pairs:
            rebuilt = one.rebuild(known, lambda words: tell(f"{one.name}: {words}"))
            return rebuilt if isinstance(rebuilt, str) else _Rebuilt(_inside(rebuilt, known))
        own, sites = known.held.part(_MOST_HELD), len(known.victims)
        labels = None if known.labels is None or own.labels is None else torch.cat([known.labels, own.labels])
        both = replace(known, victims=torch.cat([known.victims, own.sent]), labels=labels, own=len(own))
        rebuilt = one.rebuild(both, lambda words: tell(f"{one.name}: {words}"))
        if isinstance(rebuilt, str):
            return rebuilt
        rebuilt = _inside(rebuilt, known)
        # Among few rows the class alone would be enough to find one: all that the attacker has are candidates.
        everything = torch.cat([own.rows, flat(known.rows.x, known.device)])
        own_way = best_way(rebuilt[sites:], own.origins, everything)
        return _Rebuilt(rebuilt[:sites], rebuilt[sites:] - own.inputs, own_way)


class _Rebuilt(NamedTuple):
    inputs: Tensor
    errors: Tensor | None = None
    """On rows held out, where an attacker has any that were sent."""
    own_way: Finds | None = None
    """How it looks for sources, which it learns from these."""


def _inside(rebuilt: Tensor, known: Known) -> Tensor:
    """An attacker knows the range that inputs have."""
    return rebuilt.clamp(float(known.rows.x.min()), float(known.rows.x.max()))


def _least_error(tried: list[_Rebuilt], truth: _Truth) -> entropy.Bound | None:
    """The bound on the error of every attacker: it is above none that some attacker has come down to."""
    errors = (one.errors for one in tried if one.errors is not None)
    bounds = [found for each in errors if (found := entropy.bound(each)) is not None]
    if not bounds:
        return None
    least = min(bounds)
    reached = min(float(similarity.squared_errors(one.inputs, truth.sources).mean()) for one in tried)
    return entropy.Bound(min(least.value, reached), min(least.low, reached), min(least.high, reached), least.rows)


def why_no_rows(case: Case) -> str:
    """Why nothing can be had from rows; empty where some can."""
    if not case.with_rows():
        return "in no recorded round did a site send rows, or features of rows, one by one"
    if len(case.held) < 2 * _LEAST_PAIRS:
        return f"the attacker would learn from test rows, of which there are {len(case.held)}"
    return ""


def _nothing(attack: str, variant: str, exchanged: Exchanged, one: Rebuilder | ByCandidates, why: str) -> Finding:
    return Finding(attack, variant, one.threat, exchanged.round, exchanged.phase, (), f"not tried: {why}")


@dataclass(frozen=True)
class _Truth:
    """What reconstructions are scored by; no attacker sees it."""

    sources: Tensor
    """The mean of the inputs behind each row, flat."""
    first: Tensor
    """One of them."""
    origins: Tensor
    candidates: Tensor
    guess: Tensor
    """What an attacker says that has seen nothing: the mean of its own rows."""
    shape: tuple[int, ...]
    least: float
    most: float
    """The range of the attacker's rows."""

    @classmethod
    def of(cls, known: Known, victims: SharedRows) -> _Truth:
        device = known.device
        own, candidates = flat(known.rows.x, device), flat(victims.rows.x, device)
        origins = victims.origins.to(device)
        return cls(
            sources=flat(victims.sources, device),
            first=candidates[origins.amax(1)],
            origins=origins,
            candidates=candidates,
            guess=own.mean(0),
            shape=known.shape,
            least=float(own.min()),
            most=float(own.max()),
        )

    def measures(self, found: _Rebuilt, bound: entropy.Bound | None) -> tuple[Measure, ...]:
        """Whatever can be said of a reconstruction."""
        return (*self._sources(found), *self._errors(found.inputs, bound))

    def _sources(self, found: _Rebuilt) -> list[Measure]:
        """Whether the row behind a reconstruction is found among all: the nearest, or the likeliest."""
        chance, every = similarity.chance_of(self.origins, len(self.candidates)), (self.candidates, self.origins)
        ways: dict[str, Finds] = {f"re-identified among {len(self.candidates)}, the nearest": similarity.re_identified}
        if found.own_way is not None:
            ways[f"re-identified among {len(self.candidates)}, the attacker's way"] = found.own_way
        measures = []
        for words, finds in ways.items():
            hits, raw = finds(found.inputs, *every), similarity.re_identified(self.first, *every)
            low, high = intervals.of_share(int(hits.sum()), len(hits))
            share, without = float(hits.double().mean()), float(raw.double().mean())
            measures.append(Measure(words, share, low, high, len(hits), chance, without))
        return measures

    def found(self, shares: Tensor) -> tuple[Measure, ...]:
        """How often the likeliest of all candidates is behind a row, and which part of those behind it is among as many
        likeliest. Guessing: among those that the attacker does not rule out by their class."""
        possible = torch.isfinite(shares).sum(1).clamp(min=1)
        sources = _marked(self.origins, len(self.candidates))
        best, own = shares.argmax(1), self.candidates[self.origins.clamp(min=0)]
        # Twins of a source count as it.
        alike = (own == self.candidates[best][:, None]).all(2) & (self.origins >= 0)
        hits, behind = alike.any(1), sources.sum(1)
        rows, chance = len(hits), float((behind / possible).clamp(max=1).mean())
        share, words = float(hits.double().mean()), f"re-identified among {len(self.candidates)}"
        ends = intervals.of_share(int(hits.sum()), rows)
        measures = [Measure(f"{words}, the attacker's way", share, *ends, rows, chance, 1.0)]
        if int(behind.max()) > 1:
            parts, what = among_likeliest(shares, sources), "rows behind found, of as many named"
            measures.append(_mean(what, parts, behind / possible, torch.ones(rows), least=0.0, most=1.0))
        return tuple(measures)

    def _errors(self, rebuilt: Tensor, bound: entropy.Bound | None) -> list[Measure]:
        guess = self.guess.expand_as(self.sources)
        errors, guessed = (similarity.squared_errors(each, self.sources) for each in (rebuilt, guess))
        rows, none = len(errors), torch.zeros_like(errors)
        found = [
            Measure("R2", *_explained(errors, guessed), rows, chance=0.0, raw=_explained(none, guessed)[0]),
            _mean("mean squared error", errors, guessed, none, least=0.0, larger_leaks=False),
        ]
        if self.origins.shape[1] > 1:
            each, blind = (self._of_each(rows) for rows in (rebuilt, guess))
            found.insert(
                1, Measure("R2 of single rows behind", *_explained(each, blind), rows, 0.0, _explained(none, blind)[0])
            )
        if bound is not None:
            what = "no attacker's error is below (estimate)"
            found.append(Measure(what, *bound[:3], bound.rows, larger_leaks=False))
        if is_picture(self.shape):
            peak = max(self.most - self.least, 1e-12)
            planes = [each.reshape(-1, *self.shape) for each in (rebuilt, guess, self.sources)]
            alike = [similarity.ssim(each, planes[2], peak) for each in planes]
            loud = [similarity.psnr(each, peak) for each in (errors, guessed, none)]
            found += [_mean("PSNR in dB, at most 100", *loud, most=100.0), _mean("SSIM", *alike, least=-1.0, most=1.0)]
        return found

    def _of_each(self, rebuilt: Tensor) -> Tensor:
        """The mean error against the single rows behind each row that was sent."""
        there = (self.origins >= 0).double()
        single = self.candidates[self.origins.clamp(min=0)]
        errors = (rebuilt[:, None].double() - single.double()).square().mean(2)
        return (errors * there).sum(1) / there.sum(1)

    def picture(self, rebuilt: Tensor) -> bytes:
        """Originals above reconstructions; none where inputs are no pictures."""
        if not is_picture(self.shape):
            return b""
        both = torch.stack([each[:_SHOWN].reshape(-1, *self.shape) for each in (self.sources, rebuilt)])
        return pictures.grid(both, self.least, self.most)


def _marked(origins: Tensor, count: int) -> Tensor:
    """(rows, candidates): which are behind which."""
    marks = torch.zeros(len(origins), count + 1, dtype=torch.bool, device=origins.device)
    return marks.scatter(1, torch.where(origins >= 0, origins, count), True)[:, :count]


def _mean(
    what: str, values: Tensor, guessed: Tensor, raw: Tensor, *, least: float = -math.inf, most: float = math.inf,
    larger_leaks: bool = True,
) -> Measure:  # fmt: skip
    mean, low_high = float(values.double().mean()), intervals.of_mean(values, least=least, most=most)
    chance, without = float(guessed.double().mean()), float(raw.double().mean())
    return Measure(what, mean, *low_high, len(values), chance, without, larger_leaks)


def _explained(errors: Tensor, guessed: Tensor) -> tuple[float, float, float]:
    """The part of the squared distance from the blind guess that is explained, and its interval."""
    low, high = intervals.of_ratio(errors, guessed)
    whole = float(guessed.sum())
    return (1 - float(errors.sum()) / whole if whole else 0.0), 1 - high, 1 - low
