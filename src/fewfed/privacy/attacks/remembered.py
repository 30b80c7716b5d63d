"""What attacks found in a run, from its folder where they were tried before, else by trying them now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fewfed.engine.own_folder import OwnFolder
from fewfed.privacy.attacks.opening import Effort, open_case
from fewfed.privacy.attacks.registry import chosen
from fewfed.privacy.attacks.running import FILE, FOLDER, MOST_BYTES, attacked, write
from fewfed.runs.own import NOTHING
from fewfed.version import __version__


def findings_of(folder: Path, kinds: Sequence[str], effort: float) -> list[dict[str, Any]]:
    """Findings of some attacks on a recorded run, as `attacks.json` has them."""
    missing = [kind for kind in kinds if _kept(folder, kind, effort) is None]
    if missing:
        case = open_case(folder, Effort(effort), NOTHING)
        write(attacked(folder, case, chosen(missing)))
    return [finding for kind in kinds for finding in _kept(folder, kind, effort) or []]


def _kept(folder: Path, kind: str, effort: float) -> list[dict[str, Any]] | None:
    """None where the attack was not tried, or by another version or effort."""
    place = OwnFolder(folder).below(FOLDER)
    if not place.has(FILE):
        return None
    try:
        there = json.loads(place.read(FILE, MOST_BYTES))
        found = [one for one in there["findings"] if one["attack"] == kind]
        if found:
            same = all(one["effort"] == effort and one["fewfed"] == __version__ for one in found)
            return found if same else None
        return [] if any(one["attack"] == kind for one in there["does_not_apply"]) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
