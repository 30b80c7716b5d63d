"""The file by which `fewfed status` knows how a federation is doing. It is written anew after every round."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fewfed.deploy.coordinator.post import Post
from fewfed.deploy.status import STATUS, read_status
from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import RunError

if TYPE_CHECKING:
    from fewfed.deploy.coordinator.executor import SitesExecutor
    from fewfed.deploy.coordinator.opening import Opening
    from fewfed.deploy.coordinator.scoring import ScoreAtSites
    from fewfed.engine.loop import RoundView


@dataclass
class StatusFile:
    """Writes down who is there, what was sent, and who misbehaved. An observer of rounds."""

    folder: OwnFolder
    post: Post
    sites: Sequence[str]
    opening: Opening | None = None
    _executor: SitesExecutor | None = None
    _score: ScoreAtSites | None = None
    _rounds: tuple[int, int] = (0, 0)
    _state: str = "waiting for sites"

    def go_on(self) -> None:
        """Count from where the coordinator before this one stopped, where it wrote that down."""
        with contextlib.suppress(RunError):
            for name, site in read_status(self.folder.path)["sites"].items():
                if name in self.post.keys:
                    self.post.sent_bytes[name] += int(site["sent_bytes"])
                    self.post.received_bytes[name] += int(site["received_bytes"])

    def follow(self, executor: SitesExecutor, score: ScoreAtSites) -> None:
        """The rounds begin."""
        self._executor, self._score, self._state = executor, score, "running"
        self.write()

    def after_round(self, view: RoundView) -> None:
        self._rounds = (view.clock.round + 1, view.clock.rounds)
        self.write()

    def finish(self, state: str) -> None:
        """The coordinator ends: the run is finished, or stopped."""
        self._state = state
        self.write()

    def write(self) -> None:
        present = self.post.present()
        content = {
            "state": self._state,
            "written": time.time(),
            "round": self._rounds[0],
            "rounds": self._rounds[1],
            "sites": {name: self._site(name, name in present) for name in self.sites},
        }
        self.folder.write(STATUS, json.dumps(content, indent=1).encode())

    def _declined(self, name: str) -> str:
        if name not in self.post.keys:
            return "not on the roster any more"
        return self.opening.refused.get(name, "") if self.opening else ""

    def _site(self, name: str, here: bool) -> dict[str, Any]:
        terms = self.opening.terms.get(name) if self.opening else None
        found: dict[str, Any] = {
            "present": here,
            "joined": terms is not None,
            "declined": self._declined(name),
            "rows": None if terms is None else terms.rows,
            "sent_bytes": self.post.sent_bytes.get(name, 0),
            "received_bytes": self.post.received_bytes.get(name, 0),
            "accuracy": self._score.by_site.get(name) if self._score else None,
        }
        if self._executor is not None:
            book = self._executor.homes.strikes
            last = book.strikes(name)
            found |= {
                "joined": name not in self._executor.strangers,
                "strikes": book.total(name),
                "last_strike": last[-1].reason if last else "",
                "quarantined": book.quarantined(name, self._rounds[0]),
                "withdrawn": name in self._executor.homes.withdrawn,
                "unscored": self._executor.unscored.get(name, ""),
            }
        return found
