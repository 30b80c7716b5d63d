"""What is sent in a session, after the invitation. Each kind is a small type that encodes to bytes and back.

the server sends          a site answers
the session               Keys          its public keys, signed
KeyRing                   Deal          shares of its secrets for every other site, each in a box
Boxes                     Masked        its vector under masks
Survivors                 Confirmed     its signature under the list of those whose vectors arrived
Confirmations             Revealed      of each other site one kind of share
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from fewfed.deploy.secure.masks import KEY_BYTES
from fewfed.deploy.secure.shares import BOX_BYTES, DIGEST_BYTES, SHARE_BYTES
from fewfed.deploy.secure.wire import Reader, Writer, odd
from fewfed.deploy.security.keys import SIGNATURE_BYTES, PublicKey, SigningKey

_MOST_VECTOR = 1 << 32
_MOST_EXTRA = 1 << 31


class Kind(IntEnum):
    """Which message it is: its first number."""

    KEYS = 1
    KEY_RING = 2
    DEAL = 3
    BOXES = 4
    MASKED = 5
    SURVIVORS = 6
    CONFIRMED = 7
    CONFIRMATIONS = 8
    REVEALED = 9


class Secret(IntEnum):
    """Which of a site's two secrets a share is of. Nobody may get enough of both."""

    SELF = 1
    """Of the mask of its own: revealed if its vector arrived."""
    PAIR = 2
    """Of the key behind its masks with other sites: revealed if its vector did not arrive."""


def _begun(kind: Kind, session: bytes) -> Writer:
    return Writer().number(kind).raw(session)


def _opened(content: bytes, kind: Kind, session: bytes) -> Reader:
    reader = Reader(content)
    found = reader.number()
    if found != kind:
        raise odd(f"it is message {found} of the protocol: expected {kind}, {kind.name.lower()}")
    if reader.raw(len(session)) != session:
        raise odd("it belongs to another session")
    return reader


@dataclass(frozen=True)
class Keys:
    """A site's public keys of one session. Other sites check its signature, so that the server can put none under."""

    box: bytes
    mask: bytes
    signature: bytes

    @classmethod
    def signed(cls, box: bytes, mask: bytes, session: bytes, name: str, key: SigningKey) -> Keys:
        return cls(box, mask, key.sign(_to_sign(box, mask, session, name)))

    def is_from(self, name: str, session: bytes, key: PublicKey) -> bool:
        return key.signed(self.signature, _to_sign(self.box, self.mask, session, name))

    def write(self, writer: Writer) -> None:
        writer.raw(self.box).raw(self.mask).raw(self.signature)

    @classmethod
    def read(cls, reader: Reader) -> Keys:
        return cls(reader.raw(KEY_BYTES), reader.raw(KEY_BYTES), reader.raw(SIGNATURE_BYTES))

    def encode(self, session: bytes) -> bytes:
        writer = _begun(Kind.KEYS, session)
        self.write(writer)
        return writer.done()

    @classmethod
    def decode(cls, content: bytes, session: bytes) -> Keys:
        reader = _opened(content, Kind.KEYS, session)
        keys = cls.read(reader)
        reader.end()
        return keys


def _to_sign(box: bytes, mask: bytes, session: bytes, name: str) -> bytes:
    return Writer().text("fewfed secure keys").raw(session).text(name).raw(box).raw(mask).done()


@dataclass(frozen=True)
class KeyRing:
    """The public keys of all sites that answered."""

    keys: Mapping[str, Keys]

    def encode(self, session: bytes) -> bytes:
        return _begun(Kind.KEY_RING, session).by_name(self.keys, lambda writer, keys: keys.write(writer)).done()

    @classmethod
    def decode(cls, content: bytes, session: bytes) -> KeyRing:
        reader = _opened(content, Kind.KEY_RING, session)
        found = cls(reader.by_name(Keys.read))
        reader.end()
        return found


@dataclass(frozen=True)
class Dealt:
    """What a dealer has for one holder: a box, empty for itself, and digests of the two shares in it."""

    box: bytes
    digests: tuple[bytes, bytes]

    def write(self, writer: Writer) -> None:
        writer.piece(self.box).raw(self.digests[0]).raw(self.digests[1])

    @classmethod
    def read(cls, reader: Reader) -> Dealt:
        return cls(reader.piece(BOX_BYTES), (reader.raw(DIGEST_BYTES), reader.raw(DIGEST_BYTES)))


@dataclass(frozen=True)
class Deal:
    """Shares of a site's secrets for every site on the key ring, and a digest of the secret of its own mask."""

    self_digest: bytes
    dealt: Mapping[str, Dealt]

    def encode(self, session: bytes) -> bytes:
        writer = _begun(Kind.DEAL, session).raw(self.self_digest)
        return writer.by_name(self.dealt, lambda inner, dealt: dealt.write(inner)).done()

    @classmethod
    def decode(cls, content: bytes, session: bytes) -> Deal:
        reader = _opened(content, Kind.DEAL, session)
        found = cls(reader.raw(DIGEST_BYTES), reader.by_name(Dealt.read))
        reader.end()
        return found


@dataclass(frozen=True)
class Boxes:
    """The boxes for one holder, from every site that dealt."""

    dealt: Mapping[str, Dealt]

    def encode(self, session: bytes) -> bytes:
        return _begun(Kind.BOXES, session).by_name(self.dealt, lambda writer, dealt: dealt.write(writer)).done()

    @classmethod
    def decode(cls, content: bytes, session: bytes) -> Boxes:
        reader = _opened(content, Kind.BOXES, session)
        found = cls(reader.by_name(Dealt.read))
        reader.end()
        return found


@dataclass(frozen=True)
class Masked:
    """A site's vector under masks, and what it sends as it is."""

    vector: bytes
    extra: bytes
    missing: tuple[str, ...]
    """Dealers whose box it could not open."""

    def encode(self, session: bytes) -> bytes:
        writer = _begun(Kind.MASKED, session).names(self.missing)
        return writer.number(len(self.vector)).number(len(self.extra)).raw(self.vector).raw(self.extra).done()

    @classmethod
    def decode(cls, content: bytes, session: bytes) -> Masked:
        reader = _opened(content, Kind.MASKED, session)
        missing = reader.names()
        sizes = reader.number(_MOST_VECTOR), reader.number(_MOST_EXTRA)
        found = cls(reader.raw(sizes[0]), reader.raw(sizes[1]), missing)
        reader.end()
        return found


@dataclass(frozen=True)
class Survivors:
    """Whose vectors arrived."""

    names: tuple[str, ...]

    def encode(self, session: bytes) -> bytes:
        return _begun(Kind.SURVIVORS, session).names(self.names).done()

    @classmethod
    def decode(cls, content: bytes, session: bytes) -> Survivors:
        reader = _opened(content, Kind.SURVIVORS, session)
        found = cls(reader.names())
        reader.end()
        return found


@dataclass(frozen=True)
class Confirmed:
    """A site's signature under everything that all sites must have been told alike."""

    signature: bytes

    def encode(self, session: bytes) -> bytes:
        return _begun(Kind.CONFIRMED, session).raw(self.signature).done()

    @classmethod
    def decode(cls, content: bytes, session: bytes) -> Confirmed:
        reader = _opened(content, Kind.CONFIRMED, session)
        found = cls(reader.raw(SIGNATURE_BYTES))
        reader.end()
        return found


@dataclass(frozen=True)
class Confirmations:
    """The signatures of all sites that confirmed."""

    signatures: Mapping[str, bytes]

    def encode(self, session: bytes) -> bytes:
        return (
            _begun(Kind.CONFIRMATIONS, session).by_name(self.signatures, lambda writer, each: writer.raw(each)).done()
        )

    @classmethod
    def decode(cls, content: bytes, session: bytes) -> Confirmations:
        reader = _opened(content, Kind.CONFIRMATIONS, session)
        found = cls(reader.by_name(lambda inner: inner.raw(SIGNATURE_BYTES)))
        reader.end()
        return found


@dataclass(frozen=True)
class Revealed:
    """Shares that a site holds of others' secrets: of each site one kind."""

    shares: Mapping[str, tuple[Secret, bytes]]

    def encode(self, session: bytes) -> bytes:
        writer = _begun(Kind.REVEALED, session)
        return writer.by_name(self.shares, lambda inner, entry: inner.number(entry[0]).raw(entry[1])).done()

    @classmethod
    def decode(cls, content: bytes, session: bytes) -> Revealed:
        reader = _opened(content, Kind.REVEALED, session)
        found = cls(reader.by_name(lambda inner: (_secret(inner.number()), inner.raw(SHARE_BYTES))))
        reader.end()
        return found


def _secret(number: int) -> Secret:
    if number not in (Secret.SELF, Secret.PAIR):
        raise odd(f"it has a share of kind {number}: expected {Secret.SELF} or {Secret.PAIR}")
    return Secret(number)


def transcript(session: bytes, ring: KeyRing, dealers: tuple[str, ...], survivors: tuple[str, ...]) -> bytes:
    """What a site signs before it reveals anything: the keys, the dealers and the survivors that it was told."""
    writer = Writer().text("fewfed secure survivors").raw(session).raw(hashlib.sha256(ring.encode(session)).digest())
    return writer.names(dealers).names(survivors).done()
