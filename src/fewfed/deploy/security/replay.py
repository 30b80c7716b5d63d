"""What the coordinator has asked: a reply is taken once, from the site that was asked, while it is waited for.

It remembers a bounded number of requests. A reply to one that is older than its memory is refused, never taken for new.
What a site has answered, and refuses to answer again, is in `fewfed.deploy.site.home`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from fewfed.deploy.security.envelope import (
    MOST_BYTES,
    About,
    Direction,
    Expected,
    Opened,
    Refused,
    compare,
    new_nonce,
    unseal,
)
from fewfed.deploy.security.keys import PublicKey
from fewfed.deploy.security.names import COORDINATOR


class Waiting:
    """The coordinator's open requests. A reply is accepted once, from the site that was asked, as long as it is."""

    def __init__(self, keys: Mapping[str, PublicKey], most_bytes: int = MOST_BYTES, remembered: int = 4096) -> None:
        """`keys`: of all sites, by name. `remembered`: of how many closed requests we know how they ended."""
        self._keys = keys
        self._most_bytes = most_bytes
        self._remembered = remembered
        self._open: dict[bytes, About] = {}
        self._closed: OrderedDict[bytes, bool] = OrderedDict()
        """Whether a closed request was answered, by its nonce."""

    def ask(self, site: str, run: str, round: int, phase: str, kind: str, attempt: int = 0) -> About:
        """Open a request; what its envelope must say of itself."""
        about = About(run, round, phase, kind, attempt, Direction.REQUEST, COORDINATOR, site, new_nonce())
        self._open[about.nonce] = about
        return about

    def take(self, site: str, content: bytes) -> Opened:
        """Open the reply that a site's node brought and close its request; `Refused` where it is not that site's reply
        to an open request, which then stays open."""
        expected = Expected(direction=Direction.REPLY, recipient=COORDINATOR, sender=site)
        opened = unseal(content, expected, self._keys, self._most_bytes)
        about = opened.about
        request = self._open.get(about.nonce)
        if request is None:
            raise self._unasked(about)
        compare(about, Expected.exactly(request.reply()))
        self._close(about.nonce, answered=True)
        return opened

    def give_up(self, request: About) -> None:
        """Nobody waits for the answer any more."""
        if request.nonce in self._open:
            self._close(request.nonce, answered=False)

    def __len__(self) -> int:
        return len(self._open)

    def _close(self, nonce: bytes, *, answered: bool) -> None:
        del self._open[nonce]
        self._closed[nonce] = answered
        while len(self._closed) > self._remembered:
            self._closed.popitem(last=False)

    def _unasked(self, about: About) -> Refused:
        what = f"the request of round {about.round + 1}, phase '{about.phase}', that it answers"
        answered = self._closed.get(about.nonce)
        if answered is None:
            return Refused("nonce", f"{what} is not open: it is of another time, or was never made", about.sender)
        if answered:
            return Refused("repeated", f"{what} was answered already", about.sender)
        return Refused("old", f"{what} is over: it came too late", about.sender)
