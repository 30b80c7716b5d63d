"""What advice tries: a short list of methods, each with the reason why these data call for it.

The list is all that names methods. What a candidate sends, whether it fits the network and how it is run are asked of
its declarations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fewfed.runs.look import Look


@dataclass(frozen=True)
class Candidate:
    """A method that may be tried."""

    spec: str
    why: Callable[[Look], str]
    """Why it is tried on such data, in a few words; empty where it is not."""
    unless: str = ""
    """Why it is not, where it is not."""
    always: bool = False
    """Whether it is tried whatever the budget: without these nothing can be said."""


def _always(why: str) -> Callable[[Look], str]:
    return lambda look: why  # noqa: ARG005


def _if_skewed(why: str) -> Callable[[Look], str]:
    return lambda look: why if look.is_skewed else ""


def _if_few_or_skewed(why: str) -> Callable[[Look], str]:
    def found(look: Look) -> str:
        what = [word for word, holds in (("few rows", look.is_few), ("skewed labels", look.is_skewed)) if holds]
        return f"{why} ({' and '.join(what)})" if what else ""

    return found


def _if_named(why: str) -> Callable[[Look], str]:
    return lambda look: why if look.named else ""


_EVEN = "labels are much the same at all sites"
_ENOUGH = f"{_EVEN}, and sites have rows enough"
_SAME = "sites were made by a split of one data set, so that their inputs do not differ"

BASELINE = "fedavg"
"""What everything else must beat, and whose settings decide whether data and network are right at all."""
CANDIDATES: Sequence[Candidate] = (
    Candidate("local", _always("every site alone: what training together must beat"), always=True),
    Candidate(BASELINE, _always("the plain average of models: what anything else must beat"), always=True),
    Candidate("fedmix", _if_few_or_skewed("averages of rows fill up what sites lack"), _ENOUGH),
    Candidate("fedlc", _if_skewed("evens out labels without sending more"), _EVEN),
    Candidate("flea", _if_few_or_skewed("features of some rows fill up what sites lack"), _ENOUGH),
    Candidate("fedproto", _if_few_or_skewed("draws features to common prototypes"), _ENOUGH),
    Candidate("fedbn", _if_named("each site keeps its own normalisation, where inputs differ between sites"), _SAME),
    Candidate("fedfa", _if_named("varies features as sites differ in them"), _SAME),
    Candidate("feddata", _if_few_or_skewed("some rows themselves fill up what sites lack"), _ENOUGH),
    Candidate("single", _always("all rows in one place: what could be reached, not a recommendation")),
)
"""In the order in which they are given up where time is short, the last first."""


def named(specs: Sequence[str]) -> list[Candidate]:
    """What is always tried, and the methods that a user named."""
    kept = [each for each in CANDIDATES if each.always]
    known = {each.spec for each in kept}
    return kept + [Candidate(spec, _always("you named it")) for spec in dict.fromkeys(specs) if spec not in known]
