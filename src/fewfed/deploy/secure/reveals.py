"""For which sums a site has revealed shares. Of one phase it does so for one group of sites only.

Two sums of the same values, one with a site and one without it, differ by that site's value. A phase may be repeated
after a crash, but only with the same sites.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from fewfed.deploy.security.envelope import Refused
from fewfed.deploy.security.floors import Floors
from fewfed.errors import RunError

_Phase = tuple[str, int, str]


class Reveals:
    """A site's memory of its reveals. It is bounded, and belongs to the site's durable state: it must be written down
    before the answer that reveals shares leaves the site."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._known: OrderedDict[_Phase, tuple[str, ...]] = OrderedDict()
        self._floors = Floors()

    def note(self, run: str, round: int, phase: str, sites: tuple[str, ...]) -> None:
        """Note that shares are about to be revealed for the sum of these sites; `Refused` if that must not be."""
        known = self._known.get((run, round, phase))
        if known == sites:
            return
        if known is not None or self._floors.cover(run, round):
            raise Refused(
                "secure",
                f"shares were revealed before for round {round + 1}, phase '{phase}', and for another group of sites: "
                "the difference of both sums would show single values",
            )
        self._known[run, round, phase] = sites
        while len(self._known) > self._most:
            (forgotten, forgotten_round, _), _ = self._known.popitem(last=False)
            self._floors.raise_to(forgotten, forgotten_round)

    def as_json(self) -> dict[str, Any]:
        known = [[*key, list(sites)] for key, sites in self._known.items()]
        return {"known": known, "floors": self._floors.as_json()}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Go back to what `as_json` gave."""
        try:
            known = OrderedDict(
                ((str(run), int(round), str(phase)), tuple(str(site) for site in sites))
                for run, round, phase, sites in facts["known"]
            )
            self._floors.restore(facts["floors"])
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"what this site has revealed before cannot be read ({type(error).__name__}): expected it as this "
                "program wrote it"
            ) from error
        self._known = known
