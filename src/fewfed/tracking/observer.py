"""The one observer behind all trackers: it knows what each of them has, and that none may cost the run anything."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewfed.engine.loop import RoundView
from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import FewfedError, told
from fewfed.runs.history import flat_rounds
from fewfed.tracking.registry import TRACKERS, tracker
from fewfed.tracking.tracker import About, Tracker, flat

NOTES = "tracking.json"
"""In the run folder: what each tracker calls the run, and the last round it was given."""
_MOST_BYTES = 1 << 16


def tell(line: str) -> None:
    """A warning on standard error, if there is anybody to read it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(line, file=sys.stderr, flush=True)


@dataclass
class _Followed:
    """A tracker that still answers."""

    name: str
    tracker: Tracker
    id: str = ""
    sent: int = 0


@dataclass
class Track:
    """The observer. Rounds that a tracker has are not sent again: a round that is made again is the same."""

    folder: OwnFolder
    names: Sequence[str]
    warn: Callable[[str], None] = tell
    _followed: list[_Followed] = field(default_factory=list)

    def begin(self, config: Mapping[str, Any], group: str, finished: Sequence[Mapping[str, Any]]) -> None:
        """Begin, or go on. `finished`: the records of rounds that are done, which a tracker may not have."""
        if not self.names:
            return
        notes, settings = noted(self.folder), dict(flat(_settings_of(config)))
        for name in self.names:
            known = notes.get(name, {})
            about = About(self.folder.path, _name_of(self.folder.path, config), group, settings,
                          str(known.get("run", "")), int(known.get("sent", 0)))  # fmt: skip
            with self._guarded(name):
                followed = _Followed(name, tracker(name))
                followed.id, followed.sent = followed.tracker.begin(about)
                self._followed.append(followed)
        self._note()
        for record in finished:
            self._send(record)

    def after_round(self, view: RoundView) -> None:
        if self._followed:
            self._send(view.metrics)

    def end(self, result: Mapping[str, Any] | None) -> None:
        """The run came to this; nothing where it was stopped."""
        numbers = {name: float(value) for name, value in flat(result or {}) if _is_number(value)}
        for each in list(self._followed):
            with self._guarded(each.name):
                each.tracker.end(numbers if result is not None else None)
        self._followed = []

    def _send(self, record: Mapping[str, Any]) -> None:
        (row,) = flat_rounds([record])
        number = int(row.pop("round"))
        values = {name: float(value) for name, value in row.items() if _is_number(value)}
        for each in list(self._followed):
            if number > each.sent:
                with self._guarded(each.name):
                    each.tracker.round(number, values)
                    each.sent = number
        self._note()

    def _note(self) -> None:
        """Keep what each tracker calls the run; those that do not answer now keep what they had."""
        if not self._followed:
            return
        ours = {each.name: {"run": each.id, "sent": each.sent} for each in self._followed}
        with contextlib.suppress(FewfedError, OSError):  # A run that cannot write says so itself.
            self.folder.write(NOTES, json.dumps({**noted(self.folder), **ours}).encode(), durable=False)

    @contextlib.contextmanager
    def _guarded(self, name: str) -> Any:
        """Whatever a tracker raises is told once, and it is left alone from then on."""
        try:
            yield
        except Exception as error:
            self._followed = [each for each in self._followed if each.name != name]
            title = TRACKERS[name][1]
            self.warn(f"warning: {title} is left out from now on, and the run goes on: {told(error)}")


def noted(folder: OwnFolder) -> dict[str, dict[str, Any]]:
    """What was noted of each tracker; nothing where that cannot be read."""
    try:
        found = json.loads(folder.read(NOTES, _MOST_BYTES)) if folder.has(NOTES) else {}
        return {
            name: {"run": str(entry["run"]), "sent": int(entry["sent"])}
            for name, entry in found.items()
            if name in TRACKERS and _is_plain(str(entry["run"]))
        }
    except (FewfedError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _is_plain(name: str) -> bool:
    """Whether a tracker's name of a run is one that names no folder: the file may come from anybody."""
    return name.isalnum() and len(name) <= 64


def _settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    left_out = ("files", "inputs", "digest")
    return {name: value for name, value in config.items() if name not in left_out}


def _name_of(folder: Path, config: Mapping[str, Any]) -> str:
    return folder.absolute().name or str(config.get("label", "run"))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
