"""Who misbehaved: every refusal of a site is noted, and a site with too many is left out for a while.

A book belongs to one run. It goes into the checkpoint and is shown by `fewfed status`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fewfed.errors import ConfigError, RunError

_LONGEST = 300
_KEPT = 50
"""Strikes of a site that are kept with their reasons; further ones are only counted."""


@dataclass(frozen=True)
class StrikeRule:
    """When a site is left out."""

    strikes: int = 3
    """So many strikes put a site into quarantine."""
    rounds: int = 10
    """It is not invited for the rest of the round and so many further ones; 0 = until the run ends."""

    def __post_init__(self) -> None:
        for name, least in (("strikes", 1), ("rounds", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"{name} = {value!r}: expected a whole number from {least} on", key=name)


@dataclass(frozen=True)
class Strike:
    """One refusal."""

    site: str
    round: int
    phase: str
    cause: str
    """A word for machines; `reason` is the sentence for people."""
    reason: str
    time: float
    """Seconds since 1970, by the coordinator's clock: shown, never compared."""


@dataclass
class _Record:
    """What is known of one site."""

    total: int = 0
    open: int = 0
    """Strikes since the last quarantine began."""
    since: int | None = None
    """The round in which the present quarantine began; None if there is none."""


class StrikeBook:
    """All strikes of a run, and who is in quarantine."""

    def __init__(self, rule: StrikeRule | None = None, clock: Callable[[], float] = time.time) -> None:
        self.rule = rule or StrikeRule()
        self._clock = clock
        self._records: dict[str, _Record] = {}
        self._strikes: dict[str, list[Strike]] = {}

    def note(self, site: str, round: int, phase: str, cause: str, reason: str) -> bool:
        """Note a refusal; whether it put the site into quarantine. `site`: whose node brought it."""
        record = self._records.setdefault(site, _Record())
        strike = Strike(site, round, _shown(phase), _shown(cause), _shown(reason), self._clock())
        self._strikes.setdefault(site, []).append(strike)
        del self._strikes[site][:-_KEPT]
        record.total += 1
        if self.quarantined(site, round):
            return False
        record.open += 1
        if record.open < self.rule.strikes:
            return False
        record.open, record.since = 0, round
        return True

    def quarantined(self, site: str, round: int) -> bool:
        """Whether a site is not to be invited: from the strike that was too many through so many further rounds."""
        record = self._records.get(site)
        if record is None or record.since is None:
            return False
        return not self.rule.rounds or round <= record.since + self.rule.rounds

    def until(self, site: str) -> int | None:
        """The first round in which it is invited again; None without a quarantine, or where it does not end."""
        record = self._records.get(site)
        if record is None or record.since is None or not self.rule.rounds:
            return None
        return record.since + self.rule.rounds + 1

    def total(self, site: str) -> int:
        """All strikes of a site in this run."""
        return self._records[site].total if site in self._records else 0

    def strikes(self, site: str) -> tuple[Strike, ...]:
        """Its last strikes, with their reasons, oldest first."""
        return tuple(self._strikes.get(site, ()))

    def as_json(self) -> dict[str, Any]:
        return {
            "rule": asdict(self.rule),
            "sites": {
                site: {**asdict(record), "strikes": [asdict(strike) for strike in self._strikes.get(site, ())]}
                for site, record in self._records.items()
            },
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], clock: Callable[[], float] = time.time) -> StrikeBook:
        """The book that `as_json` described."""
        try:
            book = cls(StrikeRule(**facts["rule"]), clock)
            for site, entry in facts["sites"].items():
                since = entry["since"]
                record = _Record(int(entry["total"]), int(entry["open"]), None if since is None else int(since))
                book._records[str(site)] = record
                book._strikes[str(site)] = [Strike(**strike) for strike in entry["strikes"]][-_KEPT:]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(
                f"the strikes of this run cannot be read ({type(error).__name__}): expected them as this program "
                "wrote them"
            ) from error
        return book


def _shown(text: str) -> str:
    """Text that may hold what a site wrote, fit for a terminal: short, without control characters."""
    plain = "".join(each if each.isprintable() else "?" for each in text[:_LONGEST])
    return plain + (" ..." if len(text) > _LONGEST else "")
