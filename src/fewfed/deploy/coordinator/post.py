"""Asking sites: letters are sealed and sent, sent again to a site that was restarted, and answers are waited for.

Nothing here knows what is asked. A deadline, a quorum and spare sites decide how long it waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from fewfed.deploy.messages import BadMessage, shown
from fewfed.deploy.parcel import Parcel, Unanswered
from fewfed.deploy.security.envelope import About, Opened, Refused, seal
from fewfed.deploy.security.keys import PublicKey, SigningKey
from fewfed.deploy.security.replay import Waiting
from fewfed.deploy.transport import Transport
from fewfed.engine.outcomes import Failed
from fewfed.engine.packet import BadPacket
from fewfed.errors import RunError

T = TypeVar("T")

_MOST_UNHEARD = 4

Missing = Literal["late", "not needed", "refused"]
"""Why there is no usable answer: the deadline came first; enough others were faster; it was refused."""


@dataclass(frozen=True)
class Patience:
    """How long answers are waited for."""

    deadline: float = 600.0
    """Seconds after which those who have not answered are left out, if a quorum has."""
    quorum: int = 1
    """Usable answers without which nothing goes on, deadline or not."""
    spare: int = 0
    """So many more sites are asked than are needed: the slowest are left out."""
    give_up: float = 86_400.0
    """Seconds after which the run ends where there is no quorum. It can be resumed."""
    pace: float = 0.03
    """Seconds between two looks."""


@dataclass(frozen=True)
class NoAnswer:
    """A site without a usable answer."""

    why: Missing
    reason: str
    cause: str = ""
    """What was wrong with it, in one word, where it was refused."""


@dataclass(frozen=True)
class Question(Generic[T]):
    """Something that is asked of several sites at once."""

    kind: str
    round: int
    phase: str
    bodies: Mapping[str, bytes]
    """The body of the letter to each site."""
    attached: bytes
    """What all of them receive beside it."""
    judge: Callable[[str, Opened], T]
    """Makes of an answer what the asker wants of it, or raises `BadMessage` or `BadPacket`."""
    enough: int | None = None
    """So many usable answers suffice; None where everybody's is wanted."""
    quorum: int = 0


class Post:
    """The coordinator's letters of one run."""

    def __init__(
        self,
        transport: Transport,
        run: str,
        key: SigningKey,
        keys: Mapping[str, PublicKey],
        attempt: int,
        patience: Patience = Patience(),  # noqa: B008
        log: logging.Logger | None = None,
        most_bytes: int = 1 << 31,
    ) -> None:
        """`keys`: of all sites on the list. `attempt`: how often the run was taken up again."""
        self._transport, self._key = transport, key
        self.run, self.attempt, self.keys = run, attempt, dict(keys)
        self._waiting = Waiting(keys, most_bytes)
        self.patience = patience
        self.log = log or logging.getLogger("fewfed.coordinator")
        self.sent_bytes: dict[str, int] = dict.fromkeys(keys, 0)
        """Bytes sent to each site, with envelopes, and again where it was sent again."""
        self.received_bytes: dict[str, int] = dict.fromkeys(keys, 0)
        self.away: set[str] = set()
        """Sites that missed a deadline and have not been seen since: they are asked, but nobody waits for them."""
        self.seen: dict[str, str] = {}
        """The last session of each site."""
        self._unheard: dict[str, tuple[str, int]] = {}
        """Session of each site, and letters sent in it since the site was last heard of."""
        self._owed: dict[str, int] = {}
        """Letters to each site that are not answered: a site that was restarted may be asked, and answer, twice."""
        self.refusals: list[tuple[str, str, str]] = []
        """Site, cause and reason of what was refused and answers no question: for the book of strikes."""

    def present(self) -> Mapping[str, str]:
        """The sites that can be reached, and their sessions."""
        return self._transport.present()

    def ask(self, question: Question[T]) -> dict[str, T | NoAnswer]:
        """Ask, and wait: for everybody, or for enough, or until the deadline where a quorum has answered."""
        inquiry = _Inquiry(self, question)
        try:
            return inquiry.run()
        finally:
            inquiry.close()

    # What an inquiry needs.

    def sealed(self, question: Question[Any], site: str) -> tuple[About, Parcel]:
        about = self._waiting.ask(site, self.run, question.round, question.phase, question.kind, self.attempt)
        return about, Parcel(seal(question.bodies[site], about, self._key), question.attached)

    def may_send(self, site: str, session: str) -> bool:
        """Whether another letter may be sent to a site: to one that does not answer they would only pile up."""
        before, count = self._unheard.get(site, (session, 0))
        count = count if before == session else 0
        self._unheard[site] = (session, count + 1)
        return count < _MOST_UNHEARD

    def send(self, parcels: Mapping[str, Parcel]) -> None:
        self._transport.send(parcels)
        for site, parcel in parcels.items():
            self.sent_bytes[site] = self.sent_bytes.get(site, 0) + len(parcel)
            self._owed[site] = self._owed.get(site, 0) + 1

    def receive(self) -> Sequence[tuple[str, Parcel | Unanswered]]:
        found = self._transport.receive()
        for site, parcel in found:
            if isinstance(parcel, Parcel):
                self.received_bytes[site] = self.received_bytes.get(site, 0) + len(parcel)
            self._owed[site] = self._owed.get(site, 0) - 1
            self._unheard.pop(site, None)
        return found

    def opened(self, site: str, parcel: Parcel) -> Opened:
        return self._waiting.take(site, parcel.letter)

    def owes(self, site: str) -> bool:
        """Whether another answer of a site may still come."""
        return self._owed.get(site, 0) > 0

    def give_up(self, about: About) -> None:
        self._waiting.give_up(about)


class _Inquiry(Generic[T]):
    """One question on its way."""

    def __init__(self, post: Post, question: Question[T]) -> None:
        self._post, self._question = post, question
        self._open: dict[str, tuple[About, Parcel]] = {}
        self._sessions: dict[str, str] = {}
        """The session in which each letter was last sent."""
        self._found: dict[str, T | NoAnswer] = {}

    def run(self) -> dict[str, T | NoAnswer]:
        question, patience = self._question, self._post.patience
        self._open = {site: self._post.sealed(question, site) for site in question.bodies}
        began, warned = time.monotonic(), False
        while True:
            self._send()
            self._take()
            usable = sum(not isinstance(found, (NoAnswer, Failed)) for found in self._found.values())
            if not self._open or (usable >= question.quorum and self._all_away()):
                self._leave_out("late", "it was not there")
                break
            if question.enough is not None and usable >= question.enough:
                self._leave_out("not needed", "enough others were faster")
                break
            waited = time.monotonic() - began
            if waited >= patience.deadline and usable >= question.quorum:
                self._post.away |= self._open.keys()
                self._leave_out("late", f"it gave no answer in {waited:.0f} s")
                break
            if waited >= patience.give_up:
                missing = ", ".join(sorted(self._open)[:20])
                raise RunError(
                    f"{usable} sites answered in {waited:.0f} s, fewer than the quorum of {question.quorum}; no answer "
                    f"from {missing}: see that they run, then go on with 'fewfed serve --resume'"
                )
            if waited >= patience.deadline and not warned:
                warned = True
                self._post.log.warning(
                    "%d of %d answers, fewer than the quorum of %d: waiting for %s",
                    usable, len(question.bodies), question.quorum, ", ".join(sorted(self._open)),
                )  # fmt: skip
            time.sleep(patience.pace)
        return self._found

    def close(self) -> None:
        for about, _ in self._open.values():
            self._post.give_up(about)

    def _send(self) -> None:
        """To everybody who is there and has not been sent the letter in this session."""
        sessions = self._post.present()
        parcels = {}
        for site, (_, parcel) in self._open.items():
            session = sessions.get(site)
            if session is not None and self._sessions.get(site) != session:
                if not self._post.may_send(site, session):
                    continue
                if site in self._sessions:
                    self._post.log.info("site '%s' is back: asked again", site)
                parcels[site] = parcel
                self._sessions[site] = session
                if self._post.seen.get(site) != session:
                    self._post.away.discard(site)
                    self._post.seen[site] = session
        if parcels:
            self._post.send(parcels)

    def _all_away(self) -> bool:
        return bool(self._found) and self._open.keys() <= self._post.away

    def _take(self) -> None:
        for site, parcel in self._post.receive():
            if isinstance(parcel, Unanswered):
                self._go_without(site, shown(parcel.reason))
                continue
            try:
                opened = self._post.opened(site, parcel)
            except Refused as refused:
                self._refuse(site, refused.cause, str(refused))
                continue
            self._post.away.discard(site)
            if site not in self._open:
                continue
            del self._open[site]
            try:
                self._found[site] = self._question.judge(site, opened)
            except (BadMessage, BadPacket) as error:
                reason = shown(str(error))
                self._found[site] = NoAnswer("refused", f"its packet was refused: {reason}", "packet")
                self._post.log.warning("site '%s', '%s': refused: %s", site, self._question.phase, reason)

    def _go_without(self, site: str, reason: str) -> None:
        """The site cannot be reached, and whatever stands before it says so. It is nobody's fault, and no strike."""
        self._post.log.warning("site '%s' gave no answer: %s", site, reason)
        if site in self._open:
            about, _ = self._open.pop(site)
            self._post.give_up(about)
            self._found[site] = NoAnswer("late", f"it gave no answer: {reason}")

    def _refuse(self, site: str, cause: str, reason: str) -> None:
        """An answer whose envelope is not good ends the site's turn: the node that brought it is the site's."""
        reason = shown(reason)
        asked = site in self._open and site in self._sessions  # Where letters pile up, this one was not sent yet.
        if cause in ("old", "repeated") and (not asked or self._post.owes(site)):
            self._post.log.info("an answer of site '%s' is not needed: %s", site, reason)
            return  # It was asked twice, or is late; the answer to this question may still come.
        self._post.log.warning("an answer of site '%s' was refused: %s", site, reason)
        if site not in self._open:
            self._post.refusals.append((site, cause, reason))
            return
        about, _ = self._open.pop(site)
        self._post.give_up(about)
        self._found[site] = NoAnswer("refused", f"its answer was refused: {reason}", cause)

    def _leave_out(self, why: Missing, reason: str) -> None:
        for site, (about, _) in self._open.items():
            self._post.give_up(about)
            self._found[site] = NoAnswer(why, reason)
        self._open = {}
