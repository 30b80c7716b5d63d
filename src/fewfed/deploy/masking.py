"""What coordinator and sites agree on where uploads are summed under masks: which phases, how large numbers are."""

from __future__ import annotations

from typing import get_args

from fewfed.deploy.messages import SCALING
from fewfed.deploy.secure.layout import Limits, Rest
from fewfed.phase import Phase

LIMITS = Limits(value=2.0**14, weight=2.0**16)
"""Bounds of numbers, for everybody alike. What is larger is refused at the site, never wrapped around."""
MEASURED = Limits(value=2.0**40, weight=1.0)
"""The same for sums over inputs, which are larger, of sites that all weigh 1."""


def is_summed(secure: str, phase: Phase) -> bool:
    """Whether the uploads of a phase are summed under masks: where there are any, in a run that asks for it."""
    return bool(secure) and bool(phase.uploads)


def limits_of(stage: str) -> Limits:
    return MEASURED if stage == SCALING else LIMITS


def rest_of(secure: str) -> Rest:
    """What becomes of uploads that cannot be summed."""
    found: Rest = next(each for each in get_args(Rest) if each == secure)
    return found
