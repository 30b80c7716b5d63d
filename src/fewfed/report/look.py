"""What the data of a federation are like, in plain sentences, and what that means for training together."""

from __future__ import annotations

from fewfed.report.rendering import printable
from fewfed.runs.look import FEW_ROWS, Look

_MOST_NAMED = 5
_LONGEST = 10_000
"""Letters of a sentence."""


def sentences(look: Look) -> list[str]:
    """What there is, then what follows from it."""
    # Names of classes come from a file: a terminal must not obey what stands in them.
    return [printable(line, _LONGEST) for line in (_sites(look), _labels(look), _inputs(look), *meanings(look)) if line]


def meanings(look: Look) -> list[str]:
    """What is worth knowing before anything is trained."""
    found = []
    if look.is_few:
        found.append(f"Sites have few rows: half of them have fewer than {FEW_ROWS}, so that one alone learns little.")
    if look.holders <= max(1, look.sites // 3):
        found.append(
            f"{_many(look.holders, 'site holds', 'sites hold')} nine tenths of all rows: a mean over rows is mostly "
            "theirs, and the others weigh little in it (--weighting uniform)."
        )
    elif look.is_mostly_one_site:
        found.append(
            f"One site holds {look.largest / look.rows:.0%} of all rows: a mean over rows is mostly its own "
            "(--weighting uniform)."
        )
    if look.below_classes:
        found.append(
            f"{_many(look.below_classes, 'site has', 'sites have')} fewer rows than there are classes, and cannot know "
            "them all."
        )
    if look.single_class:
        found.append(
            f"{_many(look.single_class, 'site has', 'sites have')} rows of one class alone: there a model that always "
            "answers it looks perfect at home, and knows nothing of the others (--judge all)."
        )
    if look.single_holder:
        names = ", ".join(look.single_holder[:_MOST_NAMED]) + (" ..." if len(look.single_holder) > _MOST_NAMED else "")
        found.append(
            f"{_many(len(look.single_holder), 'class is', 'classes are')} held by one site alone ({names}): what is "
            "said of them comes from there, and what is shared of them is that site's."
        )
    if look.classes > 1 and not look.is_skewed:
        found.append("Labels are much the same at all sites: skew is not what makes training together hard here.")
    return found


def _sites(look: Look) -> str:
    whose = "the data's own" if look.named else f"made by split {look.split}"
    return (
        f"{look.data}: {look.sites} sites ({whose}) with {look.rows} rows to train on, {look.median:g} at the site in "
        f"the middle, {look.smallest} at the smallest, {look.largest} at the largest; {look.test_rows} rows to test; "
        f"{look.cohort} of {look.sites} sites take part in a round."
    )


def _labels(look: Look) -> str:
    if not look.classes:
        return "Labels are masks, so that nothing is said of their skew."
    return (
        f"{look.classes} classes, {look.mean_classes:.1f} at a site in the mean; {look.lacking} of {look.sites} sites "
        f"lack one or more. For all sites to be alike, {look.distance:.0%} of all rows would have to be of other "
        f"classes; chance alone would make it {look.distance_by_chance:.0%}."
    )


def _inputs(look: Look) -> str:
    scaled = (
        " Before the first round sites add up sums over their inputs, to scale them alike, whatever the method."
        if look.scaling == "federated"
        else ""
    )
    return f"An input has {look.numbers} numbers; the network is {look.network}, with {look.weights} weights.{scaled}"


def _many(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"
