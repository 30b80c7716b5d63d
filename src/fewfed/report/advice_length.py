"""What the shortness of a bake-off leaves open: who was still getting better, and whether anybody had time to learn."""

from __future__ import annotations

from collections.abc import Sequence

from fewfed.report.recommended import Choice, Evidence
from fewfed.runs.judged import TELLING


def is_too_short(evidence: Sequence[Evidence]) -> bool:
    """Whether nobody had the rounds from which it shows who is still learning."""
    return max(each.rounds for each in evidence) < TELLING


def rounds_told(evidence: Sequence[Evidence]) -> str:
    """The rounds of the longest runs, in words."""
    full = max(each.rounds for each in evidence)
    return f"{full} round{'s' if full > 1 else ''}"


def left_open(choice: Choice, evidence: Sequence[Evidence]) -> list[str]:
    """What a longer run may change. Who learns slowly is behind at first, and is not worse for that."""
    chosen, lines = choice.chosen, []
    if chosen.rises:
        lines.append(f"It was still getting better after {chosen.rounds} rounds: more may help.")
    others = [each for each in evidence if each is not chosen and not each.is_reference and each.rises]
    if others:
        told = ", ".join(f"{each.label} (after {each.rounds} rounds)" for each in others)
        lines.append(f"Of the others, still getting better at the end: {told}. A longer run may change the order.")
    if is_too_short(evidence):
        lines.append(
            f"It is no more than a first look: in {rounds_told(evidence)} hardly anything is learned, and who learns "
            f"slowly may be ahead later; expected {TELLING} rounds at the very least (more --minutes, or --rounds "
            "where you named them)."
        )
    return lines
