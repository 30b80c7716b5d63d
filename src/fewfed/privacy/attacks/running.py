"""Attacks on a run one after another, and what they found written beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import FewfedError
from fewfed.privacy.attacks.attack import Attack, Tell
from fewfed.privacy.attacks.case import Case
from fewfed.privacy.attacks.finding import DoesNotApply, Finding
from fewfed.version import __version__

FOLDER, FILE = "attacks", "attacks.json"
MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class Attacked:
    """What attacks on a run found, and which had nothing to work on."""

    folder: Path
    attacks: tuple[str, ...]
    findings: tuple[Finding, ...]
    does_not_apply: tuple[DoesNotApply, ...]
    seed: int = 0
    effort: float = 1.0
    device: str = "cpu"

    def pictures(self) -> dict[str, bytes]:
        """PNG files by name."""
        return {_picture(one): one.picture for one in self.findings if one.picture}

    def as_json(self) -> dict[str, Any]:
        """With the names of the pictures."""
        how = {"seed": self.seed, "effort": self.effort, "device": self.device, "fewfed": __version__}
        return {
            "folder": str(self.folder),
            "findings": [_finding(one, how) for one in self.findings],
            "does_not_apply": [{"attack": one.attack, "why": one.why} for one in self.does_not_apply],
        }


def attacked(
    folder: Path, case: Case, attacks: Sequence[Attack], show: Callable[[int, str], None] = lambda _done, _words: None
) -> Attacked:
    """Run attacks on a case. One that cannot be run costs no other. `show`: how many are done, and what is done now."""
    findings: list[Finding] = []
    idle: list[DoesNotApply] = []
    for number, each in enumerate(attacks):
        show(number, each.name)
        try:
            why = each.why_not(case)
            found = [] if why else each.findings(case, _telling(show, number, each.name))
        except FewfedError as error:
            why, found = f"it could not be run: {error}", []
        findings += found
        if not found:
            idle.append(DoesNotApply(each.name, why or "it found nothing to work on"))
    show(len(attacks), "")
    names = tuple(each.name for each in attacks)
    return Attacked(folder, names, tuple(findings), tuple(idle), case.seed, case.effort, str(case.device))


def _telling(show: Callable[[int, str], None], done: int, attack: str) -> Tell:
    return lambda words: show(done, f"{attack}: {words}")


def write(found: Attacked) -> Path:
    """Write findings and pictures into the folder of a run; what other attacks found before stays there."""
    place = OwnFolder(found.folder).below(FOLDER)
    place.make()
    now = found.as_json()
    before = _before(place, found.attacks)
    kept = {
        "findings": [*before["findings"], *now["findings"]],
        "does_not_apply": [*before["does_not_apply"], *now["does_not_apply"]],
    }
    for name, content in found.pictures().items():
        place.write(name, content)
    place.write(FILE, (json.dumps(kept, indent=1) + "\n").encode())
    return found.folder / FOLDER / FILE


def _before(place: OwnFolder, attacks: Sequence[str]) -> dict[str, list[Any]]:
    """What is there of other attacks; a file that is not as `write` makes it is written anew."""
    empty: dict[str, list[Any]] = {"findings": [], "does_not_apply": []}
    if not place.has(FILE):
        return empty
    try:
        there = json.loads(place.read(FILE, MOST_BYTES))
        return {part: [one for one in there[part] if one["attack"] not in attacks] for part in empty}
    except (ValueError, KeyError, TypeError, RecursionError):
        return empty


def _finding(one: Finding, how: dict[str, Any]) -> dict[str, Any]:
    return {**one.as_json(), "picture": _picture(one) if one.picture else None, **how}


def _picture(one: Finding) -> str:
    return f"{one.attack}-{one.variant or 'all'}-round-{one.round:05d}-{_plain(one.phase)}.png"


def _plain(name: str) -> str:
    """A phase's name is anybody's: as a part of a file's name only letters, digits and dashes of it are used."""
    return "".join(letter if letter.isalnum() and letter.isascii() else "-" for letter in name)[:40]
