"""Advice in plain sentences."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fewfed.metric import Metric
from fewfed.privacy.sharing import Share
from fewfed.report.advice_length import is_too_short, left_open, rounds_told
from fewfed.report.leak import EXPLAINED
from fewfed.report.paired import CONFIDENCE, amount, paired, sentence
from fewfed.report.recommended import FAR, TELLING_SEEDS, WORTH, Choice, Evidence

if TYPE_CHECKING:
    from fewfed.report.advice import Advice
    from fewfed.runs.look import Look


def reasons(choice: Choice, evidence: Sequence[Evidence], metric: Metric) -> list[str]:
    """What is recommended, why, what it brings over training alone and over the plain average, and what it leaks."""
    chosen = choice.chosen
    lines = [f"Recommended: {chosen.label}."]
    if chosen.leaves.share is Share.NOTHING:
        lines.append(_alone(choice, evidence, metric))
    elif choice.is_simpler:
        lines.append(f"{_ahead(choice)}: {_sentence(choice.best, choice, metric)}")
    else:
        lines.append("Nothing that sends less came as far on the validation rows.")
    if unsure := choice.unsure(evidence):
        names = " and ".join(each.label for each in unsure)
        lines.append(f"That {names} would not do as well is likely, not certain: more seeds would tell.")
    others = [each for each in evidence if each is not chosen and each is not choice.best]
    told = [_sentence(each, choice, metric) for each in others if not each.is_reference]
    lines += told
    lines += [_reference(each, choice, metric) for each in others if each.is_reference]
    test, half = chosen.interval(chosen.test)
    lines.append(f"On the test rows, which decided nothing, {chosen.label} reaches {shown(test, half, metric)}.")
    if chosen.leak_r2 is not None and chosen.leak_reidentified is not None:
        lines.append(
            f"What it shares is not private by itself: an attacker reconstructs it with R2 {chosen.leak_r2:.2f} and "
            f"re-identifies {chosen.leak_reidentified:.0%} of it ('fewfed explain' says what leaves, docs/defences.md "
            "what can be done)."
        )
    return [*lines, *left_open(choice, evidence)]


def no_better_than_guessing(chosen: Evidence, guesses: Mapping[int, float], metric: Metric, own: bool) -> list[str]:
    """A warning where what is recommended may be no more than an answer that looks at no row. `guesses`: what that
    comes to on the same validation rows, by seed; `own`: in the mean over sites."""
    found = paired(chosen.validation, guesses, metric)
    if not found.seeds or found.verdict == "better" or (found.verdict == "one seed" and found.gain > 0):
        return []
    level = statistics.fmean(guesses[seed] for seed in chosen.validation.keys() & guesses.keys())
    return [
        f"Do not rely on it yet: {_guess(metric, own)} comes to {shown(level, None, metric)} on the same rows, and "
        f"{chosen.label}'s {shown(*chosen.interval(chosen.validation), metric)} "
        + ("is no better." if found.gain <= 0 else "is not beyond that for certain.")
    ]


def _guess(metric: Metric, own: bool) -> str:
    if metric.name == "loss":
        return "always answering how common the classes are"
    if metric.name == "auc":
        return "guessing"
    return "always answering the commonest class" + (", of all sites or each site's own," if own else "")


def one_site(look: Look, own: bool) -> list[str]:
    """What it means for the advice that one site holds most of all rows."""
    if not look.is_mostly_one_site:
        return []
    held = f"One site holds {look.largest / look.rows:.0%} of all rows"
    if own:
        return [
            f"{held}: every site counts alike in these numbers all the same, so that this is advice for sites in the "
            "mean, and not for most rows (--judge all)."
        ]
    return [
        f"{held}, and so about as much of the rows that decide: this is advice for that site before all others"
        + (" (--judge own: every site counts alike)." if look.can_judge_own else ".")
    ]


def how(advice: Advice) -> list[str]:
    """How it was found, what was left out, and what that leaves open."""
    seeds = len(advice.seeds)
    rates = (
        "three learning rates of each method tried on a seed of their own"
        if advice.baked.is_searched
        else "not tuned: learning rates are the methods' own or yours"
    )
    lines = [
        f"{advice.baked.seconds:.0f} s of {60 * advice.asked.minutes:.0f} s; {seeds} seed{'s' if seeds > 1 else ''}; "
        f"{rates}; judged by the last third of the rounds on {advice.asked.validation:.0%} of every site's rows, which "
        "nobody trained on; test rows were looked at afterwards."
    ]
    if seeds < TELLING_SEEDS:
        lines.append(
            f"{'One seed has no interval' if seeds == 1 else 'Two seeds have intervals too wide to be of use'}: what "
            f"sends more is recommended only where it is ahead by more than {100 * FAR * WORTH:.0f} "
            f"{'points' if advice.metric.is_share else 'percent of the other'}. More --minutes give more seeds."
        )
    full = max(each.rounds for each in advice.evidence)
    shorter = [f"{each.label} {each.rounds}" for each in advice.evidence if each.rounds < full]
    alone = [each.label for each in advice.evidence if each.is_alone]
    drawn = advice.considered.look.cohort < advice.considered.look.sites
    lines.append(
        f"{full} round{'s' if full > 1 else ''}"
        + (f" ({', '.join(shorter)})" if shorter else "")
        + (f"; for {' and '.join(alone)} all sites train in every round" if alone and drawn else "")
        + "."
    )
    lines += [f"not tried: {each.label}: {each.why}" for each in advice.not_tried]
    if advice.baked.unfinished:
        lines.append(f"stopped at the end of the time: {', '.join(advice.baked.unfinished)}; the same command goes on")
    return lines


def title(advice: Advice) -> str:
    look = advice.considered.look
    rows = "every site's own rows" if advice.own else "rows of all sites"
    return f"{look.data}, {look.split}, {look.sites} sites, {advice.metric.title} on {rows}"


def caption(advice: Advice) -> str:
    percent = " in %" if advice.metric.is_share else ""
    lower = ", lower is better" if advice.metric.lower_is_better else ""
    several = f"mean and {CONFIDENCE:.0%} interval over seeds" if len(advice.seeds) > 1 else "one seed, no interval"
    parts = [f"{advice.metric.title}{percent}{lower}: {several}", "kB of all sites in a round"]
    if any(each.leak_r2 is not None for each in advice.evidence):
        parts.append(EXPLAINED)
    if any(each.is_reference for each in advice.evidence):
        parts.append("* a reference, never recommended")
    return "; ".join(parts)


def with_interval(mean: float, half: float | None, metric: Metric) -> str:
    """A cell of the table."""
    return amount(mean, metric) + ("" if half is None else f" ± {amount(half, metric)}")


def shown(mean: float, half: float | None, metric: Metric) -> str:
    return with_interval(mean, half, metric) + (" %" if metric.is_share else "")


def _ahead(choice: Choice) -> str:
    """Who was ahead of what is recommended, and why that is not enough."""
    best, chosen = choice.best, choice.chosen
    if best.leaves.share is chosen.leaves.share:
        return f"{best.label} came out ahead on the validation rows, but not by enough, and it sends no less"
    return (
        f"{best.label} came out ahead on the validation rows, but not by enough to send more for it "
        f"({best.leaves.told}; {chosen.label} sends {chosen.leaves.told})"
    )


def _alone(choice: Choice, evidence: Sequence[Evidence], metric: Metric) -> str:
    if choice.is_simpler:
        return (
            "Whether training together pays here cannot be told: nothing was far ahead of every site training alone, "
            "or ahead beyond chance, and what sends nothing is the simplest. The nearest: "
            f"{_sentence(choice.best, choice, metric)}"
        )
    if is_too_short(evidence):
        return (
            f"Whether training together pays here cannot be told after {rounds_told(evidence)}: so far nothing was "
            "ahead of every site training alone, and what sends nothing is the simplest."
        )
    others = [each for each in evidence if not each.is_reference and each.spec in choice.differences]
    if any(choice.differences[each.spec].verdict != "worse" for each in others if each is not choice.chosen):
        return (
            "Nothing was ahead of every site training alone on the validation rows, and what sends nothing is the "
            "simplest; that training together brings no more is likely, not certain: more seeds would tell."
        )
    return "Training together does not pay here: every site alone does best on the validation rows."


def _sentence(each: Evidence, choice: Choice, metric: Metric) -> str:
    difference = choice.differences.get(each.spec)
    return "" if difference is None else sentence(each.label, choice.chosen.label, difference, metric)


def _reference(each: Evidence, choice: Choice, metric: Metric) -> str:
    return f"With all rows in one place, for comparison: {_sentence(each, choice, metric)}"
