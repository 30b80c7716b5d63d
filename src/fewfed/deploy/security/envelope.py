"""Signed envelopes: every message between coordinator and sites is in one.

    magic, version, direction, round, attempt, nonce, length and digest of the body     fixed sizes
    run, phase, kind, sender, recipient                                                 each with its length
    signature of all of the above                                                       64 bytes
    body

There is one encoding for each meaning, nothing is optional, and sizes are compared before anything is built. A reply
carries the nonce of its request, so that it answers this request and no other. There is no time in it: clocks that
differ change nothing.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Literal

from fewfed.deploy.security.keys import SIGNATURE_BYTES, PublicKey, SigningKey

VERSION = 1
NONCE_BYTES = 16
MOST_BYTES = 1 << 31
"""The largest envelope that is opened by default."""

_MAGIC = b"FEWFEDEN"
_FRONT = struct.Struct("<8sBBQI16sQ32s")
_LENGTH = struct.Struct("<H")
_DOMAIN = b"fewfed signed envelope\x00"
"""Stands before what is signed, so that no signature made for another purpose fits."""
_LONGEST = 300
_MOST_ROUND = (1 << 63) - 1
_MOST_ATTEMPT = (1 << 32) - 1
_TEXTS = ("run", "phase", "kind", "sender", "recipient")

Cause = Literal[
    "size", "form", "version", "sender", "signature", "body",
    "direction", "recipient", "run", "round", "phase", "kind", "attempt", "nonce", "repeated", "old", "secure",
]  # fmt: skip
"""What was wrong with an envelope; the later ones are said only of one whose signature is good."""


class Refused(Exception):
    """A message that is not accepted, and why."""

    def __init__(self, cause: Cause, reason: str, sender: str = "") -> None:
        super().__init__(reason)
        self.cause: Cause = cause
        self.sender = sender
        """Who has certainly sent it; empty where its signature does not prove anybody."""


class Direction(IntEnum):
    """Which way an envelope goes."""

    REQUEST = 1
    """From the coordinator to a site."""
    REPLY = 2
    """From a site to the coordinator."""


@dataclass(frozen=True)
class About:
    """What an envelope says of itself; all of it is signed."""

    run: str
    """The identity of the run, so that nothing of one run is taken for another's."""
    round: int
    phase: str
    kind: str
    """What is asked for, or answered: the deployment's own words."""
    attempt: int
    """How often the coordinator has begun this phase anew."""
    direction: Direction
    sender: str
    recipient: str
    nonce: bytes
    """Drawn for a request; its reply has the same."""

    def reply(self) -> About:
        """What the reply to this request says of itself."""
        return replace(self, direction=Direction.REPLY, sender=self.recipient, recipient=self.sender)


@dataclass(frozen=True)
class Expected:
    """What an envelope must say of itself; None where anything will do."""

    run: str | None = None
    round: int | None = None
    phase: str | None = None
    kind: str | None = None
    attempt: int | None = None
    direction: Direction | None = None
    sender: str | None = None
    recipient: str | None = None
    nonce: bytes | None = None

    @classmethod
    def exactly(cls, about: About) -> Expected:
        """This and nothing else: a coordinator knows all about the reply it waits for (`request.reply()`)."""
        return cls(**{each.name: getattr(about, each.name) for each in fields(about)})


@dataclass(frozen=True)
class Opened:
    """An envelope whose signature is good and that is as expected."""

    about: About
    body: bytes
    digest: bytes
    """SHA-256 of the body."""


def new_nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def seal(body: bytes, about: About, key: SigningKey) -> bytes:
    """Put a body into an envelope signed by its sender. `ValueError` where `about` cannot be written."""
    signed = _header(about, len(body), hashlib.sha256(body).digest())
    return b"".join((signed, key.sign(_DOMAIN + signed), body))


def unseal(content: bytes, expected: Expected, keys: Mapping[str, PublicKey], most_bytes: int = MOST_BYTES) -> Opened:
    """Open an envelope, or raise `Refused` with the first thing that is wrong.

    `keys`: of everybody who may have sent it, by name. What an envelope says of itself is compared with what is
    expected only once its signature is found to be good.
    """
    if len(content) > most_bytes:
        raise Refused("size", f"it has {len(content)} bytes: expected at most {most_bytes}")
    about, length, digest, end = _read(content)
    key = keys.get(about.sender)
    if key is None:
        raise Refused("sender", f"it says that it comes from {about.sender!r:.80}, who is not on the list")
    body_at = end + SIGNATURE_BYTES
    if not key.signed(content[end:body_at], _DOMAIN + content[:end]):
        raise Refused("signature", f"its signature is not that of '{about.sender}', from whom it says that it comes")
    compare(about, expected)
    if len(content) - body_at != length:
        found = len(content) - body_at
        raise Refused("body", f"its body has {found} bytes: expected the {length} that were signed")
    body = content[body_at:]
    if hashlib.sha256(body).digest() != digest:
        raise Refused("body", "its body is not the one that was signed")
    return Opened(about, body, digest)


def _header(about: About, length: int, digest: bytes) -> bytes:
    _refuse_unwritable(about)
    front = _FRONT.pack(
        _MAGIC, VERSION, about.direction, about.round, about.attempt, about.nonce, length, digest
    )  # fmt: skip
    texts = [getattr(about, name).encode() for name in _TEXTS]
    return front + b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def _read(content: bytes) -> tuple[About, int, bytes, int]:
    """What the front says: about, length and digest of the body, and where the signature begins."""
    if len(content) < _FRONT.size:
        raise Refused("form", f"it has {len(content)} bytes: expected at least {_FRONT.size}")
    magic, version, direction, round, attempt, nonce, length, digest = _FRONT.unpack_from(content)
    if magic != _MAGIC:
        raise Refused("form", "it does not begin as an envelope does")
    if version != VERSION:
        raise Refused("version", f"it is of version {version}: expected {VERSION}; update the older side")
    if direction not in (Direction.REQUEST, Direction.REPLY):
        raise Refused("form", f"its direction is {direction}: expected a request or a reply")
    texts, end = {}, _FRONT.size
    for name in _TEXTS:
        texts[name], end = _text(content, end, name)
    if len(content) < end + SIGNATURE_BYTES:
        raise Refused("form", "it ends before its signature does")
    about = About(**texts, round=round, attempt=attempt, direction=Direction(direction), nonce=nonce)
    problem = _problem(about)
    if problem:
        raise Refused("form", problem)
    return about, length, digest, end


def _text(content: bytes, start: int, name: str) -> tuple[str, int]:
    begin = start + _LENGTH.size
    if begin > len(content):
        raise Refused("form", f"it ends before its {name}")
    (length,) = _LENGTH.unpack_from(content, start)
    if begin + length > len(content):
        raise Refused("form", f"its {name} claims {length} bytes: expected at most those that follow")
    try:
        return content[begin : begin + length].decode(), begin + length
    except UnicodeDecodeError:
        raise Refused("form", f"its {name} is no text") from None


def compare(about: About, expected: Expected) -> None:
    """Raise `Refused` with the first thing in which an envelope differs from what is expected."""
    for name in ("direction", "recipient", "run", "round", "phase", "kind", "attempt", "sender", "nonce"):
        wanted, found = getattr(expected, name), getattr(about, name)
        if wanted is not None and found != wanted:
            raise Refused(name, _differs(name, found, wanted), about.sender)


def _differs(name: str, found: object, wanted: object) -> str:
    if name == "nonce":
        return "it answers another request: its nonce is not that of the request it is given for"
    if isinstance(found, Direction) and isinstance(wanted, Direction):
        return f"it is a {found.name.lower()}: expected a {wanted.name.lower()}"
    return f"its {name} is {found!r:.80}: expected {wanted!r:.80}"


def _refuse_unwritable(about: About) -> None:
    problem = _problem(about)
    if problem:
        raise ValueError(problem)


def _problem(about: About) -> str:
    """What in it cannot be written, or would not have been; empty if nothing is."""
    for name in _TEXTS:
        text = getattr(about, name)
        if len(text) > _LONGEST or not text.isprintable():
            return f"its {name} {text!r:.60} is too long or has control characters: expected at most {_LONGEST}"
    if not about.run or not about.sender or not about.recipient:
        return "it has no run, no sender or no recipient"
    if not 0 <= about.round <= _MOST_ROUND or not 0 <= about.attempt <= _MOST_ATTEMPT:
        return f"its round is {about.round} and its attempt {about.attempt}: expected numbers from 0 on"
    if len(about.nonce) != NONCE_BYTES:
        return f"its nonce has {len(about.nonce)} bytes: expected {NONCE_BYTES}"
    return ""
