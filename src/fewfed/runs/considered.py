"""Which candidates are tried on some data: those the data call for, that fit the network and send what is allowed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fewfed.data.reading import Reading
from fewfed.errors import ConfigError
from fewfed.methods.registry import label_of
from fewfed.privacy.sharing import Leaves, Share, leaves
from fewfed.runs import aside
from fewfed.runs.candidates import BASELINE, CANDIDATES, Candidate, named
from fewfed.runs.cells import LoadedData
from fewfed.runs.comparison import values_for
from fewfed.runs.executors import refuse_inexact
from fewfed.runs.experiment import Resolved, resolve
from fewfed.runs.look import Look, look
from fewfed.runs.naming import file_name
from fewfed.runs.prepare import Prepared, prepare, settled


@dataclass(frozen=True)
class Tried:
    """A candidate that is tried."""

    spec: str
    label: str
    why: str
    always: bool
    leaves: Leaves
    lr: float
    """Its own learning rate, or what the user set."""

    @property
    def is_reference(self) -> bool:
        """Whether all rows would have to be in one place: shown, never recommended."""
        return self.leaves.pooled

    @property
    def is_alone(self) -> bool:
        """Whether it exchanges nothing with a server, so that nobody need be drawn for a round."""
        return self.leaves.pooled or self.leaves.share is Share.NOTHING


@dataclass(frozen=True)
class NotTried:
    """A candidate that is not tried, and why."""

    label: str
    why: str


@dataclass(frozen=True)
class Considered:
    """What is tried on which data."""

    look: Look
    tried: tuple[Tried, ...]
    not_tried: tuple[NotTried, ...]
    reading: Reading | None
    first: Resolved
    """A run of the baseline, with everything decided that is left to the data."""


def considered(values: Mapping[str, Any], allowed: Share, methods: Sequence[str], data: LoadedData) -> Considered:
    """Look at the data and at every candidate. What is wrong with the baseline is wrong with the user's settings and
    raised; a candidate that does not fit is left out, and why is said. `methods`: those a user named, in place of
    what the data call for."""
    candidates = named(methods) if methods else list(CANDIDATES)
    _refuse_alike(candidates)
    resolved = resolve(BASELINE, values_for(BASELINE, values))
    whole = data.of(resolved)
    first = settled(resolved, whole)
    try:
        seen = _look(aside.answered(partial(_looked, first, data)))
    except ConfigError as error:
        if error.key != "validation":
            raise
        # Nobody here asked for validation rows, and nothing can be said without.
        raise ConfigError(
            "no site has rows enough to hold one back for judging methods: expected sites with at least two rows to "
            "train on; use fewer clients, or join sites",
            key="validation",
        ) from error
    if seen.sites < 2:
        raise ConfigError(
            f"data '{seen.data}' has one site, which has nobody to train with: expected several, as a column of sites "
            "(--site) or a split (--split, --clients) makes them; one alone is trained by 'fewfed run local'"
        )
    tried: list[Tried] = []
    not_tried: list[NotTried] = []
    for candidate in candidates:
        label, why = label_of(candidate.spec), candidate.why(seen)
        if not why:
            not_tried.append(NotTried(label, candidate.unless))
            continue
        mine = resolve(candidate.spec, values_for(candidate.spec, values))
        try:
            sent = _leaves(aside.answered(partial(_left, mine, data)))
        except ConfigError as error:
            if candidate.spec == BASELINE:
                raise
            not_tried.append(NotTried(label, str(error)))
            continue
        if sent.share > allowed and not sent.pooled:
            why = f"it sends {sent.told}, and {allowed.word} is the most that may leave"
            not_tried.append(NotTried(label, why))
            continue
        tried.append(Tried(candidate.spec, label, why, candidate.always, sent, mine.training.lr))
    return Considered(seen, tuple(tried), tuple(not_tried), whole.reading, first)


def _refuse_alike(candidates: Sequence[Candidate]) -> None:
    names = [file_name(label_of(each.spec)) for each in candidates]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"two methods are called '{min(twice)}': expected each once, under names that differ")


def _prepared(resolved: Resolved, data: LoadedData) -> Prepared:
    prepared = prepare(resolved, data=data.own.data, network=data.own.network, loaded=data.of(resolved))
    refuse_inexact(prepared.resolved, prepared.cohort)
    return prepared


def _looked(resolved: Resolved, data: LoadedData) -> dict[str, Any]:
    return dataclasses.asdict(look(_prepared(resolved, data), data.of(resolved)))


def _left(resolved: Resolved, data: LoadedData) -> dict[str, Any]:
    return dataclasses.asdict(leaves(_prepared(resolved, data).job, resolved.experiment.rounds))


def _look(answer: Mapping[str, Any]) -> Look:
    return Look(**{**answer, "single_holder": tuple(answer["single_holder"])})


def _leaves(answer: Mapping[str, Any]) -> Leaves:
    return Leaves(Share(answer["share"]), tuple(answer["roles"]), tuple(answer["seen_raw"]), answer["pooled"])
