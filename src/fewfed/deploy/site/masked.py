"""A site's part in sums under masks, between its letters and the state machine of `fewfed.deploy.secure`."""

from __future__ import annotations

from collections.abc import Mapping

from fewfed.deploy.masking import is_summed, limits_of, rest_of
from fewfed.deploy.messages import BadMessage
from fewfed.deploy.parcel import digest_of
from fewfed.deploy.secure.layout import Layout, outline_of
from fewfed.deploy.secure.messages import Kind
from fewfed.deploy.secure.reveals import Reveals
from fewfed.deploy.secure.site import SecureSite
from fewfed.deploy.security.envelope import About
from fewfed.deploy.security.keys import PublicKey, SigningKey
from fewfed.deploy.site.home import Home
from fewfed.engine.packet import Packet, decode, encode
from fewfed.phase import Phase

FIRST = Kind.KEYS.name.lower()
_REVEALS = "reveals"


class MaskedSums:
    """The sums of one run that a site takes part in. Their secrets are in memory alone: a site that is restarted in the
    middle of one has dropped out of it, and the others go on."""

    def __init__(
        self, name: str, key: SigningKey, peers: Mapping[str, PublicKey], home: Home, secure: str, least_threshold: int
    ) -> None:
        """`least_threshold`: of the sites that must answer to the end; below it this one takes no part in a sum."""
        self._name, self._key, self._peers, self._home, self._secure = name, key, peers, home, secure
        self._least_threshold = least_threshold
        self._reveals = Reveals()
        if (facts := home.facts(_REVEALS)) is not None:
            self._reveals.restore(facts)
        self._site: SecureSite | None = None
        self._about: tuple[int, str, int] = (-1, "", -1)
        self._answers: dict[str, tuple[str, bytes]] = {}
        """By step, what was asked and answered: a letter may come twice."""

    def answer(self, about: About, place: tuple[str, int, str], phase: Phase, step: str, content: bytes) -> bytes:
        """The answer to a step. Raises `Refused`, or `OutOfRange` where its numbers are too large to be summed."""
        if not is_summed(self._secure, phase):
            raise BadMessage(f"phase '{phase.name}' is not summed under masks in this run")
        current = (about.round, about.phase, about.attempt)
        asked = digest_of(content)
        if current == self._about and self._answers.get(step, ("", b""))[0] == asked:
            return self._answers[step][1]
        if step == FIRST:
            self._begin(about, place, phase, content)
            self._about, self._answers = current, {}
        if self._site is None or current != self._about:
            raise BadMessage("this site has dropped out of the sum, since it was restarted")
        answer = self._site.keys() if step == FIRST else self._site.answer(content)
        self._home.write_facts(_REVEALS, self._reveals.as_json())  # Before shares leave.
        self._answers[step] = (asked, answer)
        return answer

    def _begin(self, about: About, place: tuple[str, int, str], phase: Phase, invitation: bytes) -> None:
        value = self._home.value(place)
        if not value:
            raise BadMessage("this site has taken no turn in the phase that is to be summed")
        packet = decode(value)
        made = SecureSite(invitation, about, self._name, self._key, self._peers, self._reveals, self._least_threshold)
        layout = Layout.of(
            phase.uploads,
            outline_of(packet.arrays),
            len(made.session.sites),
            limits_of(place[0]),
            rest_of(self._secure),
        )
        clear = layout.in_clear(packet.arrays)
        extra = encode(Packet(packet.round, packet.phase, packet.sender, 1.0, clear)) if clear else b""
        made.put(layout, packet.weight, packet.arrays, extra)
        self._site = made
