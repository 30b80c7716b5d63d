"""The server's part in a sum under masks: it carries messages between sites and learns the sum, or nothing.

server = SecureServer(session, layout, roster.keys)
while not server.is_done:
    for site, request in server.requests().items(): ...   # send it
    server.take(site, reply)                              # for each reply; Refused leaves the site out
    server.close_step()                                   # NoSum where too few are left
server.sums, server.extras
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from fewfed.deploy.secure.fixed_point import Vector
from fewfed.deploy.secure.layout import Layout, NoSum, Sums
from fewfed.deploy.secure.masks import Agreement, add_mask, derived, from_bytes
from fewfed.deploy.secure.messages import (
    Boxes,
    Confirmations,
    Confirmed,
    Deal,
    KeyRing,
    Keys,
    Kind,
    Masked,
    Revealed,
    Secret,
    Survivors,
    transcript,
)
from fewfed.deploy.secure.session import Session
from fewfed.deploy.secure.shares import BOX_BYTES, check_share, digest_of, join
from fewfed.deploy.security.envelope import Refused
from fewfed.deploy.security.keys import PublicKey

STEPS = (Kind.KEYS, Kind.DEAL, Kind.MASKED, Kind.CONFIRMED, Kind.REVEALED)
"""What sites are asked for, one step after another."""


class SecureServer:
    """One session. It holds one vector, however many sites there are."""

    def __init__(self, session: Session, layout: Layout, keys: Mapping[str, PublicKey]) -> None:
        """`keys`: the signing keys of all sites."""
        if layout.digest != session.layout or layout.sites != len(session.sites):
            raise ValueError("the session was made for another layout")
        self._session, self._layout, self._keys = session, layout, keys
        self._digest = session.digest
        self._step = 0
        self._asked: tuple[str, ...] = session.sites
        self._answered: set[str] = set()
        self._out: dict[str, str] = {}
        self._ring: dict[str, Keys] = {}
        self._deals: dict[str, Deal] = {}
        self._total: Vector = np.zeros(layout.length, np.uint64)
        self._survivors: tuple[str, ...] = ()
        self._signatures: dict[str, bytes] = {}
        self._shares: dict[str, dict[int, bytes]] = {}
        """By dealer, the shares of the secret that is to be put together, by the holder's number."""
        self._sums: Sums | None = None
        self.extras: dict[str, bytes] = {}
        """By site, what it sent as it is. Only of sites in the sum."""
        self.complaints: dict[str, tuple[str, ...]] = {}
        """By site, the dealers whose boxes it says it could not open."""

    @property
    def step(self) -> Kind:
        """What sites are asked for now."""
        return STEPS[self._step]

    @property
    def is_done(self) -> bool:
        return self._step == len(STEPS)

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """Who was asked and has not answered yet."""
        return () if self.is_done else tuple(name for name in self._asked if name not in self._answered)

    @property
    def left_out(self) -> dict[str, str]:
        """Who dropped out, and at which step. Who did so after its vector arrived is in the sum."""
        return dict(self._out)

    @property
    def sums(self) -> Sums:
        """The result; it is there once all steps are done."""
        if self._sums is None:
            raise ValueError("the sum is not known yet")
        return self._sums

    def requests(self) -> dict[str, bytes]:
        """What to send to each site that still takes part; its answer goes to `take`."""
        if self.step is Kind.KEYS:
            return dict.fromkeys(self._asked, self._session.encode())
        if self.step is Kind.DEAL:
            return dict.fromkeys(self._asked, KeyRing(self._ring).encode(self._digest))
        if self.step is Kind.MASKED:
            return {
                holder: Boxes({dealer: deal.dealt[holder] for dealer, deal in self._deals.items()}).encode(self._digest)
                for holder in self._asked
            }
        if self.step is Kind.CONFIRMED:
            return dict.fromkeys(self._asked, Survivors(self._survivors).encode(self._digest))
        return dict.fromkeys(self._asked, Confirmations(self._signatures).encode(self._digest))

    def take(self, site: str, content: bytes) -> None:
        """Take a site's answer; `Refused` where it is not what the step asks for. The site may answer again, properly,
        as long as the step is open."""
        if self.is_done or site not in self._asked:
            raise Refused("secure", f"'{site:.80}' is not asked for anything in this sum (any more)", site)
        if site in self._answered:
            raise Refused("repeated", f"'{site}' has answered this step already", site)
        takers: Mapping[Kind, Callable[[str, bytes], None]] = {
            Kind.KEYS: self._take_keys,
            Kind.DEAL: self._take_deal,
            Kind.MASKED: self._take_masked,
            Kind.CONFIRMED: self._take_confirmed,
            Kind.REVEALED: self._take_revealed,
        }
        try:
            takers[self.step](site, content)
        except Refused as error:
            raise Refused(error.cause, str(error), site) from None
        self._answered.add(site)

    def close_step(self) -> None:
        """End the step: who has not answered is out. `NoSum` where fewer than the threshold are left."""
        left = tuple(name for name in self._asked if name in self._answered)
        for name in self.waiting_for:
            self._out[name] = self.step.name.lower()
        if len(left) < self._session.threshold:
            gone = ", ".join(f"{name} ({step})" for name, step in sorted(self._out.items()))
            raise NoSum(
                f"{len(left)} of {len(self._session.sites)} sites are left at step '{self.step.name.lower()}', and "
                f"{self._session.threshold} are needed to unmask a sum; gone: {gone or 'nobody'}"
            )
        if self.step is Kind.MASKED:
            self._survivors = left
        elif self.step is Kind.REVEALED:
            self._sums = self._unmasked()
        self._asked, self._answered = left, set()
        self._step += 1

    def _take_keys(self, site: str, content: bytes) -> None:
        keys = Keys.decode(content, self._digest)
        if not keys.is_from(site, self._digest, self._keys[site]):
            raise Refused("secure", "its keys are not signed by it")
        for key in (keys.box, keys.mask):
            Agreement().key_with(key, self._digest, "pair mask", ("", ""))  # Refuses what others could not use.
        known = {key for other in self._ring.values() for key in (other.box, other.mask)}
        if keys.box == keys.mask or known & {keys.box, keys.mask}:
            raise Refused("secure", "its keys are another's, or the same twice")
        self._ring[site] = keys

    def _take_deal(self, site: str, content: bytes) -> None:
        deal = Deal.decode(content, self._digest)
        if deal.dealt.keys() != self._ring.keys():
            raise Refused("secure", "it deals to other sites than those on the key ring")
        for holder, dealt in deal.dealt.items():
            if len(dealt.box) != (0 if holder == site else BOX_BYTES):
                raise Refused("secure", f"its box for '{holder}' has {len(dealt.box)} bytes: expected {BOX_BYTES}")
        self._deals[site] = deal

    def _take_masked(self, site: str, content: bytes) -> None:
        masked = Masked.decode(content, self._digest)
        vector = from_bytes(masked.vector, self._layout.length)
        if not set(masked.missing) <= self._deals.keys():
            raise Refused("secure", "it misses boxes of sites that dealt none")
        np.add(self._total, vector, out=self._total)
        self.extras[site] = masked.extra
        if masked.missing:
            self.complaints[site] = masked.missing

    def _take_confirmed(self, site: str, content: bytes) -> None:
        signature = Confirmed.decode(content, self._digest).signature
        agreed = transcript(self._digest, KeyRing(self._ring), tuple(sorted(self._deals)), self._survivors)
        if not self._keys[site].signed(signature, agreed):
            raise Refused("secure", "it has signed something else than the list of survivors")
        self._signatures[site] = signature

    def _take_revealed(self, site: str, content: bytes) -> None:
        revealed = Revealed.decode(content, self._digest).shares
        holder = self._session.number(site)
        for dealer, (kind, share) in revealed.items():
            if dealer not in self._deals or kind is not self._wanted(dealer):
                raise Refused("secure", f"it reveals a share of '{dealer:.80}' that nobody asked for")
            check_share(share, holder)
            if digest_of(share) != self._deals[dealer].dealt[site].digests[kind is Secret.PAIR]:
                raise Refused("secure", f"its share of '{dealer}' is not the one that '{dealer}' dealt")
        for dealer, (_, share) in revealed.items():
            self._shares.setdefault(dealer, {})[holder] = share

    def _wanted(self, dealer: str) -> Secret:
        return Secret.SELF if dealer in self._survivors else Secret.PAIR

    def _unmasked(self) -> Sums:
        """Take the masks away: of survivors their own, of the others those that survivors share with them."""
        secrets = {dealer: self._secret(dealer) for dealer in sorted(self._deals)}
        total = np.array(self._total)
        for dealer, secret in secrets.items():
            if dealer in self._survivors:
                add_mask(total, derived(secret, self._digest, "self mask", dealer), -1)
            else:
                self._take_away_pairs(total, dealer, Agreement(secret))
        return self._layout.read(total, self._survivors)

    def _take_away_pairs(self, total: Vector, gone: str, key: Agreement) -> None:
        for name in self._survivors:
            first, second = sorted((gone, name))
            mask = key.key_with(self._ring[name].mask, self._digest, "pair mask", (first, second))
            add_mask(total, mask, -1 if name == first else 1)

    def _secret(self, dealer: str) -> bytes:
        """The secret of a dealer that is to be known; `NoSum` unless it is the one it has committed itself to."""
        shares = self._shares.get(dealer, {})
        if len(shares) < self._session.threshold:
            raise NoSum(
                f"{len(shares)} sites gave their share of what hides '{dealer}', and {self._session.threshold} are "
                "needed: the sum stays masked"
            )
        secret = join(shares, self._session.threshold)
        if secret is None or not self._committed(dealer, secret):
            # Every share is the one whose digest the dealer gave, so it is the dealer who has dealt badly.
            raise NoSum(f"the shares that '{dealer}' dealt do not give its secret: the sum stays masked", (dealer,))
        return secret

    def _committed(self, dealer: str, secret: bytes) -> bool:
        if self._wanted(dealer) is Secret.SELF:
            return digest_of(secret) == self._deals[dealer].self_digest
        return Agreement(secret).public == self._ring[dealer].mask
