"""What attacks on a recorded run found, as it is kept beside a study and shown in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fewfed.privacy.attacks.running import Attacked

Findings = Sequence[Mapping[str, Any]]


def plain(name: str) -> str:
    """A method's name as a part of a file's name."""
    return "".join(letter if letter.isalnum() else "-" for letter in name).strip("-").replace("--", "-")


def findings_of(found: Attacked) -> list[dict[str, Any]]:
    """All findings, without pictures; of who attacks, the words."""
    return [{**finding, "picture": None, "threat": finding["threat"]["who"]} for finding in found.as_json()["findings"]]


def idle_of(found: Attacked) -> list[dict[str, str]]:
    """Attacks that had nothing to work on, and why."""
    return [{"attack": one.attack, "why": one.why} for one in found.does_not_apply]


def strongest(findings: Findings, attack: str, measure: str, variant: str = "") -> Mapping[str, Any] | None:
    """The largest value of the measures whose name begins so, over the attackers of one kind, in its last round.

    The result is that measure, with the name of the attacker as `by`. The largest of several is a little too large.
    """
    of_kind = [one for one in findings if one["attack"] == attack and variant in one["variant"]]
    last = max((one["round"] for one in of_kind), default=0)
    found = [
        {**each, "by": one["variant"]}
        for one in of_kind
        for each in one["measures"]
        if one["round"] == last and each["what"].startswith(measure)
    ]
    return max(found, key=lambda each: each["value"], default=None)


def told(measure: Mapping[str, Any] | None, digits: int = 2) -> str:
    """A measure with its interval, as far as that is known; nothing where the attack did not apply."""
    if measure is None:
        return ""
    if measure["low"] is None or measure["high"] is None:
        return f"{measure['value']:.{digits}f}"
    return f"{measure['value']:.{digits}f} ({measure['low']:.{digits}f} to {measure['high']:.{digits}f})"


def row(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def head(cells: Sequence[str]) -> list[str]:
    """The first two rows of one."""
    return [row(cells), "|---" * len(cells) + "|"]
