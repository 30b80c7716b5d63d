"""How much leaves a site, as one of a few levels, read from what a method declares: roles, combinations, rows.

For people who must say what they allow before they know a method, and to put methods in order of what they send.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

import torch

from fewfed.data.examples import Examples
from fewfed.engine import asking
from fewfed.engine.job import Job, is_inside
from fewfed.engine.rehearsal import telling_rounds
from fewfed.engine.turn import Member, context_with
from fewfed.errors import ConfigError, did_you_mean
from fewfed.phase import Clock, Cohort, Phase, Role, Upload

_ROWS = 64
"""Rows of the stand-in that is asked which rows are behind those it would send."""


class Share(IntEnum):
    """What leaves a site at most. Each level has all before it."""

    NOTHING = 0
    MODEL = 1
    """Weights of the model, and what corrects them."""
    STATISTICS = 2
    """Numbers from many rows: means, moments, prototypes of classes, counts, scores; generators of rows."""
    AVERAGES = 3
    """Rows, each the average of several of the site's."""
    FEATURES = 4
    """Features of single rows, or their labels."""
    INPUTS = 5
    """Inputs of single rows as they are, or as good as that."""

    @property
    def word(self) -> str:
        """As a user writes it."""
        return self.name.lower()


TOLD: Mapping[Share, str] = {
    Share.NOTHING: "nothing",
    Share.MODEL: "weights of the model",
    Share.STATISTICS: "weights and statistics of many rows",
    Share.AVERAGES: "weights and averages of several rows each",
    Share.FEATURES: "weights and features of single rows",
    Share.INPUTS: "inputs of single rows",
}
"""What leaves a site, in a few words."""

_OF_ROLE: Mapping[Role, Share] = {
    Role.MODEL: Share.MODEL,
    Role.UPDATE: Share.MODEL,
    Role.CONTROL: Share.MODEL,
    Role.STATISTICS: Share.STATISTICS,
    Role.PROTOTYPES: Share.STATISTICS,
    Role.COUNTS: Share.STATISTICS,
    Role.SCORE: Share.STATISTICS,
    Role.GENERATOR: Share.STATISTICS,
    Role.LABELS: Share.FEATURES,
    Role.FEATURES: Share.FEATURES,
    Role.INPUTS: Share.INPUTS,
}


@dataclass(frozen=True)
class Leaves:
    """What leaves a site with one method."""

    share: Share
    roles: tuple[str, ...]
    """Of all its uploads, those that tell more first."""
    seen_raw: tuple[str, ...]
    """Of these, those whose single values the server sees, so that secure aggregation cannot hide them."""
    pooled: bool
    """Whether all rows are in one place: no federation at all."""

    @property
    def told(self) -> str:
        """In a few words."""
        if self.pooled:
            return "all rows, to one place"
        return TOLD[self.share] + (", seen one by one" if self.seen_raw else "")


def share_of(text: str) -> Share:
    """The level that a user allows, checked."""
    allowed = {share.word: share for share in Share if share}
    if text not in allowed:
        raise ConfigError(did_you_mean("level of what may leave a site", text, list(allowed)), key="share")
    return allowed[text]


def leaves(job: Job, rounds: int) -> Leaves:
    """What leaves a site in a run, from the phases of all its rounds."""
    found = dict(_uploads(job, rounds))
    pooled = any(phase.cohort is Cohort.UNION for _, phase in _phases(job, rounds))
    levels = {key: _level(job, *value) for key, value in found.items()}
    order = sorted(found, key=lambda key: -levels[key])
    roles = tuple(dict.fromkeys(found[key][2].role.value for key in order))
    raw = tuple(dict.fromkeys(found[key][2].role.value for key in order if found[key][2].combine.seen_raw))
    share = Share.INPUTS if pooled else max(levels.values(), default=Share.NOTHING)
    return Leaves(share, roles, raw, pooled)


def _phases(job: Job, rounds: int) -> Iterator[tuple[Clock, Phase]]:
    for clock in telling_rounds(job, rounds):
        for phase in asking.phases(job, clock):
            yield clock, phase


def _uploads(job: Job, rounds: int) -> Iterator[tuple[tuple[str, str], tuple[Clock, Phase, Upload]]]:
    for clock, phase in _phases(job, rounds):
        if not is_inside(phase):
            for name, upload in phase.uploads.items():
                yield (phase.name, name), (clock, phase, upload)


def _level(job: Job, clock: Clock, phase: Phase, upload: Upload) -> Share:
    level = _OF_ROLE[upload.role]
    if upload.rows and level >= Share.FEATURES and rows_behind(job, clock, phase) > 1:
        return Share.AVERAGES
    return level


def rows_behind(job: Job, clock: Clock, phase: Phase) -> int:
    """The least number of a site's rows behind each row it sends; 1 where nobody can tell."""
    shape = tuple(job.federation.shape)
    rows = Examples(torch.zeros(_ROWS, *shape, dtype=job.net.dtype), job.task.blank_labels(_ROWS, shape))
    counts = torch.bincount(rows.y, minlength=job.task.classes) if job.task.classes else torch.zeros(0)
    try:
        state = asking.client_init(job)
        ctx = context_with(job, phase, clock, rows, counts, {}, Member(0, {}, state))
        origins = phase.does.origins(ctx)
    except Exception:  # Whatever a method's code does with zeros: what is not known counts as single rows.
        return 1
    return int((origins >= 0).sum(1).min()) if len(origins) else 1
