"""A site's part in a sum under masks. It answers each step once, and refuses what could unmask anybody's value."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np

from fewfed.deploy.secure.fixed_point import Vector
from fewfed.deploy.secure.layout import Layout
from fewfed.deploy.secure.masks import Agreement, add_mask, derived, to_bytes
from fewfed.deploy.secure.messages import (
    Boxes,
    Confirmations,
    Confirmed,
    Deal,
    Dealt,
    KeyRing,
    Keys,
    Kind,
    Masked,
    Revealed,
    Secret,
    Survivors,
    transcript,
)
from fewfed.deploy.secure.reveals import Reveals
from fewfed.deploy.secure.session import Session
from fewfed.deploy.secure.shares import SECRET_BYTES, boxed, digest_of, split, unboxed
from fewfed.deploy.security.envelope import About, Refused
from fewfed.deploy.security.keys import PublicKey, SigningKey
from fewfed.tree import Tree


def _refused(reason: str) -> Refused:
    return Refused("secure", reason)


class SecureSite:
    """One site in one session. Make a new one for each invitation."""

    def __init__(
        self,
        invitation: bytes,
        about: About,
        name: str,
        signing: SigningKey,
        keys: Mapping[str, PublicKey],
        reveals: Reveals,
        least_threshold: int = 0,
    ) -> None:
        """`about`: of the envelope that the invitation came in. `keys`: the signing keys of all sites, from the site's
        own roster. `least_threshold`: below it the site does not take part. `Refused` where it should not."""
        self.session = Session.decode(invitation)
        if not self.session.is_of(about):
            raise _refused("the sum is of another run, round, phase or attempt than the request that asks for it")
        if self.session.problem:
            raise _refused(self.session.problem)
        if name not in self.session.sites:
            raise _refused(f"'{name}' is not among the sites of the sum")
        strangers = [other for other in self.session.sites if other not in keys]
        if strangers:
            raise _refused(f"site '{strangers[0]}' is not on this site's roster: expected only sites whose keys it has")
        if self.session.threshold < least_threshold:
            raise _refused(f"the threshold is {self.session.threshold}: this site asks for at least {least_threshold}")
        self._name, self._signing, self._keys, self._reveals = name, signing, keys, reveals
        self._digest = self.session.digest
        self._box, self._mask, self._self_secret = Agreement(), Agreement(), os.urandom(SECRET_BYTES)
        self._own_keys = Keys.signed(self._box.public, self._mask.public, self._digest, name, signing)
        self._next = Kind.KEY_RING
        self._vector: Vector | None = None
        self._extra = b""
        self._ring = KeyRing({})
        self._held: dict[str, tuple[bytes, bytes]] = {}
        """By dealer, the shares that this site holds: of the dealer's own mask, and of its key."""
        self._dealers: tuple[str, ...] = ()
        self._survivors: tuple[str, ...] = ()

    def put(self, layout: Layout, weight: float, arrays: Tree, extra: bytes = b"") -> None:
        """What this site adds to the sum; `extra` is sent as it is. `OutOfRange` where it cannot be added, `Refused`
        where the server expects another vector."""
        if self._vector is not None:
            raise _refused("this site has given its value already: one session sums one value")
        if layout.digest != self.session.layout:
            raise _refused("the sum is of other arrays, bounds or combinations than those that this site uploads")
        self._vector, self._extra = layout.write(weight, arrays), extra

    def keys(self) -> bytes:
        """The answer to the invitation."""
        return self._own_keys.encode(self._digest)

    def answer(self, content: bytes) -> bytes:
        """The answer to the next message of the server. `Refused` leaves everything as it was."""
        if self._next is Kind.KEY_RING:
            return self._deal(content)
        if self._next is Kind.BOXES:
            return self._masked(content)
        if self._next is Kind.SURVIVORS:
            return self._confirm(content)
        if self._next is Kind.CONFIRMATIONS:
            return self._reveal(content)
        raise _refused("this site has revealed all that it reveals in this session")

    def _deal(self, content: bytes) -> bytes:
        """Split both secrets among the sites on the key ring."""
        ring = KeyRing.decode(content, self._digest)
        self._check_ring(ring)
        holders = len(self.session.sites)
        own = split(self._self_secret, self.session.threshold, holders)
        pair = split(self._mask.private, self.session.threshold, holders)
        dealt: dict[str, Dealt] = {}
        for holder, keys in ring.keys.items():
            place = self.session.number(holder)
            shares = own[place], pair[place]
            box = b""
            if holder == self._name:
                self._held[holder] = shares
            else:
                key = self._box.key_with(keys.box, self._digest, "box", (self._name, holder))
                box = boxed(shares, key, self._digest, self._name, holder)
            dealt[holder] = Dealt(box, (digest_of(shares[0]), digest_of(shares[1])))
        self._ring, self._next = ring, Kind.BOXES
        return Deal(digest_of(self._self_secret), dealt).encode(self._digest)

    def _check_ring(self, ring: KeyRing) -> None:
        self._check_group(tuple(ring.keys), self.session.sites, "sites with keys")
        if ring.keys[self._name] != self._own_keys:
            raise _refused("the keys under this site's name are not its own")
        for name, keys in ring.keys.items():
            if not keys.is_from(name, self._digest, self._keys[name]):
                raise _refused(f"the keys of site '{name}' are not signed by it")
        publics = [key for keys in ring.keys.values() for key in (keys.box, keys.mask)]
        if len(set(publics)) < len(publics):
            raise _refused("two keys on the ring are the same")

    def _check_group(self, names: tuple[str, ...], among: tuple[str, ...], what: str) -> None:
        if not set(names) <= set(among):
            raise _refused(f"of the {what}, {sorted(set(names) - set(among))[0]!r:.80} was not there before")
        if self._name not in names:
            raise _refused(f"this site is not among the {what}")
        if len(names) < self.session.threshold:
            raise _refused(f"there are {len(names)} {what}: expected at least {self.session.threshold}")

    def _masked(self, content: bytes) -> bytes:
        """Open the boxes, and put the vector under the masks with all who dealt."""
        if self._vector is None:
            raise ValueError("the site's value is not known yet: call put before")
        boxes = Boxes.decode(content, self._digest)
        dealers = tuple(boxes.dealt)
        self._check_group(dealers, tuple(self._ring.keys), "sites that dealt")
        missing = tuple(dealer for dealer in dealers if not self._open(dealer, boxes.dealt[dealer]))
        vector = np.array(self._vector)
        add_mask(vector, derived(self._self_secret, self._digest, "self mask", self._name), 1)
        for other in dealers:
            if other != self._name:
                first, second = sorted((self._name, other))
                key = self._mask.key_with(self._ring.keys[other].mask, self._digest, "pair mask", (first, second))
                add_mask(vector, key, 1 if self._name == first else -1)
        self._dealers, self._next = dealers, Kind.SURVIVORS
        return Masked(to_bytes(vector), self._extra, missing).encode(self._digest)

    def _open(self, dealer: str, dealt: Dealt) -> bool:
        """Keep the shares that a dealer has for this site; whether they are what it says."""
        if dealer == self._name:
            return True
        key = self._box.key_with(self._ring.keys[dealer].box, self._digest, "box", (dealer, self._name))
        shares = unboxed(dealt.box, key, self._digest, dealer, self._name)
        if shares is None or (digest_of(shares[0]), digest_of(shares[1])) != dealt.digests:
            return False
        self._held[dealer] = shares
        return True

    def _confirm(self, content: bytes) -> bytes:
        """Sign the list of those whose vectors arrived; there is one in a session."""
        survivors = Survivors.decode(content, self._digest).names
        self._check_group(survivors, self._dealers, "sites whose vectors arrived")
        self._survivors, self._next = survivors, Kind.CONFIRMATIONS
        return Confirmed(self._signing.sign(self._agreed())).encode(self._digest)

    def _agreed(self) -> bytes:
        return transcript(self._digest, self._ring, self._dealers, self._survivors)

    def _reveal(self, content: bytes) -> bytes:
        """Give shares, once enough sites have signed the same list: of survivors those of their own mask, of the others
        those of their key. Never both of one site."""
        signatures = Confirmations.decode(content, self._digest).signatures
        self._check_group(tuple(signatures), self._survivors, "sites that confirmed")
        agreed = self._agreed()
        for name, signature in signatures.items():
            if not self._keys[name].signed(signature, agreed):
                raise _refused(f"site '{name}' has not signed the list of survivors that this site was told")
        self._reveals.note(self.session.run, self.session.round, self.session.phase, self._survivors)
        shares = {
            dealer: (Secret.SELF, held[0]) if dealer in self._survivors else (Secret.PAIR, held[1])
            for dealer, held in self._held.items()
            if dealer in self._dealers
        }
        self._next = Kind.REVEALED
        self._forget()
        return Revealed(shares).encode(self._digest)

    def _forget(self) -> None:
        """Secrets of a session serve no purpose after it."""
        self._held, self._vector, self._self_secret = {}, None, b""
        self._box, self._mask = Agreement(), Agreement()
